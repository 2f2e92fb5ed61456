r"""$v^\top \nabla^2 L\, v$ of a batch's loss for about the cost of one gradient.

The loss along a line, $L(w + \epsilon v)$, has a Taylor series in $\epsilon$. Its second
coefficient is half of $v^\top \nabla^2 L\, v$. A product with the Hessian is not needed.

`quadratic_forms` is the only function that other packages use. Its parts:

- `tape` records the operations that compute the loss,
- `rules` gives the first two derivatives of each operation along a line,
- `form` adds them up, and compares the result with autograd.
"""

from crsam.curvature.taylor.form import ProductForm, QuadraticForm, TaylorForm, quadratic_forms

__all__ = ["ProductForm", "QuadraticForm", "TaylorForm", "quadratic_forms"]
