"""Transformers: a ``Trainer`` that takes any method by its name."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from accelerate.optimizer import AcceleratedOptimizer
from torch import Tensor, nn
from transformers import Trainer

import crsam
from crsam import _tensors as tn
from crsam.errors import UserError, unknown
from crsam.integrations.accelerate import prepared, window_of
from crsam.integrations.loggers import scalars
from crsam.integrations.window import Window
from crsam.optim.optimizer import SharpnessAware
from crsam.optim.registry import options


class SharpnessAwareTrainer(Trainer):
    """A ``Trainer`` led by a method of the family, around the optimizer of its arguments.

    Every pass of a step sees all micro-batches of ``gradient_accumulation_steps``;
    ``max_grad_norm`` clips the gradient that is followed, and the logged ``grad_norm`` is that
    one's; what the last step saw is logged beside the loss. The step is taken in
    ``training_step``, before the callbacks' ``on_pre_optimizer_step``.

    For another trainer put it first: ``class Mine(SharpnessAwareTrainer, Seq2SeqTrainer)``.

    Args:
        *args: As for the ``Trainer``.
        method: One of ``crsam.methods()``.
        method_options: What that method takes, such as ``{"rho": 0.1}``.
        **kwargs: As for the ``Trainer``; an optimizer of ours in ``optimizers=`` is used as it is.

    Example:
        >>> import tempfile, torch
        >>> from transformers import BertConfig, BertForSequenceClassification, TrainingArguments
        >>> small = dict(hidden_size=8, num_hidden_layers=1, num_attention_heads=2)
        >>> config = BertConfig(vocab_size=20, intermediate_size=8, num_labels=2, **small)
        >>> model = BertForSequenceClassification(config)
        >>> data = [{"input_ids": [i % 20, 3, 4], "labels": i % 2} for i in range(8)]
        >>> with tempfile.TemporaryDirectory() as folder:  # doctest: +ELLIPSIS
        ...     args = TrainingArguments(folder, max_steps=2, report_to="none", use_cpu=True,
        ...                              disable_tqdm=True, logging_strategy="no")
        ...     trainer = SharpnessAwareTrainer(model, args, train_dataset=data,
        ...                                     method="crsam", method_options={"rho": 0.1})
        ...     trainer.train().global_step
        {'train_runtime': ...}
        2
    """

    optimizer: Any

    def __init__(
        self,
        *args: Any,
        method: str = "crsam",
        method_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        self.method, self.method_options = method, dict(method_options or {})
        self._window: Window | None = None
        self._grad_norm = torch.tensor(torch.nan)
        for name in self.method_options:
            if name not in options(method):
                raise unknown(f"option of {method}", name, options(method))
        super().__init__(*args, **kwargs)
        if self.args.n_gpu > 1:
            raise UserError(
                f"{self.args.n_gpu} GPUs in one process (DataParallel) are not supported: start "
                "one process a GPU with torchrun, or set CUDA_VISIBLE_DEVICES"
            )
        if self.accelerator.gradient_accumulation_steps != 1:
            # As 5.3 does: the gradients are then not those of the losses that we are told.
            raise UserError(
                "this version of transformers divides the gradients of accumulated batches twice: "
                "use transformers>=5.22"
            )

    def create_optimizer(self, model: nn.Module | None = None) -> Any:
        optimizer = super().create_optimizer(model)
        inner = getattr(optimizer, "optimizer", optimizer)  # as an earlier `train` prepared it
        if not isinstance(inner, SharpnessAware):
            given = {"seed": self.args.seed, **self.method_options}
            self.optimizer = inner = crsam.make(self.method, optimizer, **given)
        if inner.max_norm is None:
            inner.max_norm = self.args.max_grad_norm or None
        return self.optimizer

    def create_scheduler(self, num_training_steps: int, optimizer: Any = None) -> Any:
        self._window = None  # training starts
        if isinstance(self.optimizer, AcceleratedOptimizer):
            self.optimizer = prepared(self.accelerator, self.optimizer)
        return super().create_scheduler(num_training_steps, optimizer)

    def training_step(
        self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None
    ) -> Tensor:
        """A micro-batch; after the last one of a step, the step."""
        seen: list[Tensor] = []
        plain = partial(super().training_step, model, inputs, num_items_in_batch)

        def run() -> Tensor:
            seen.append(plain())
            return seen[-1]

        if self._window is None:
            self._window = window_of(self.accelerator, model, self.optimizer)
        if not self.accelerator.sync_gradients:
            self._window.add(run)
        else:
            closure, self._window = self._window.closure(run), None
            self._grad_norm = torch.tensor(torch.nan)  # stays so if the step is skipped

            def look() -> None:  # now, because a base may overwrite the gradients
                self._grad_norm = tn.norm(
                    [p.grad for p in model.parameters() if p.grad is not None]
                )

            self.optimizer.take(closure, look)
        return seen[0]

    def _clip_grad_norm(self, model: nn.Module) -> None:
        """Nothing: the gradient was clipped in the step."""

    def _get_grad_norm(self, model: nn.Module, grad_norm: Any = None) -> Tensor:
        """Returns the norm of the gradient that was followed, before it was clipped."""
        return self._grad_norm / self.optimizer.optimizer.report.get("clip_scale", 1.0)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            logs = {**logs, **scalars(self.optimizer)}
        super().log(logs, *args, **kwargs)
