"""The change that crsam asks of a training loop. It needs torch and crsam, and nothing else.

python examples/two_lines.py
"""

import torch
from torch.nn import functional as F

import crsam

torch.manual_seed(0)
x = torch.randn(512, 8)
y = (x[:, 0] * x[:, 1] > 0).long()
model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))

base = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
opt = crsam.CRSAM(base, rho=0.05, model=model)

for epoch in range(20):
    for part in torch.randperm(len(x)).split(64):

        def closure(part: torch.Tensor = part) -> torch.Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x[part]), y[part])
            loss.backward()
            return loss

        loss = opt.step(closure)
    if epoch % 5 == 4:
        curvature = opt.report["curvature"].item()
        print(f"epoch {epoch + 1}: loss {loss:.3f}, curvature along the gradient {curvature:.2f}")
