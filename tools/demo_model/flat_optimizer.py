"""AdamW on float32 masters behind bf16 weights, all kept in a few flat buffers.

Flat buffers make the gradient all-reduce one call, the update a handful of kernels, and the bf16 weights the only
copy the model sees.  Plain AdamW on bf16 weights stalls at small learning rates: an update below half a unit in
the last place is lost.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
import torch.distributed as distributed
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Linear warm-up, then a cosine from ``peak`` to a tenth of it, over steps ``start`` to ``stop``."""

    peak: float
    warmup_steps: int
    start: int
    stop: int

    def rate(self, step: int) -> float:
        """The learning rate of one step; 0 before ``start``."""
        done = step - self.start
        if done < 0:
            return 0.0
        if done < self.warmup_steps:
            return self.peak * (done + 1) / self.warmup_steps
        span = max(1, self.stop - self.start - self.warmup_steps)
        progress = min(1.0, (done - self.warmup_steps) / span)
        return self.peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))


@dataclass(kw_only=True)
class FlatOptimizer:
    """The parameters of one part of the model.  Build with :meth:`over`."""

    values: Tensor
    gradients: Tensor
    master: nn.Parameter
    master_gradients: Tensor
    adam: torch.optim.AdamW
    spans: list[nn.Parameter] = field(default_factory=list)

    @classmethod
    def over(cls, named: Iterable[tuple[str, nn.Parameter]], *, weight_decay: float) -> FlatOptimizer:
        """Move parameters into flat buffers and return their optimiser; matrices, not embeddings, decay."""
        parameters = [(name, p) for name, p in named if p.requires_grad]
        parameters.sort(key=lambda item: _decays(*item))
        undecayed = sum(p.numel() for name, p in parameters if not _decays(name, p))
        first = parameters[0][1]
        total = sum(p.numel() for _, p in parameters)
        values = torch.empty(total, dtype=first.dtype, device=first.device)
        gradients = torch.zeros_like(values)
        offset = 0
        for _, parameter in parameters:
            span = slice(offset, offset + parameter.numel())
            values[span].copy_(parameter.data.flatten())
            parameter.data = values[span].view_as(parameter)
            parameter.grad = gradients[span].view_as(parameter)
            offset = span.stop
        master = nn.Parameter(values.float(), requires_grad=False)
        master_gradients = torch.zeros_like(master)
        plain, decayed = master[:undecayed], master[undecayed:]
        plain.grad, decayed.grad = master_gradients[:undecayed], master_gradients[undecayed:]
        groups = [{"params": [plain], "weight_decay": 0.0}, {"params": [decayed], "weight_decay": weight_decay}]
        adam = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=values.is_cuda)
        return cls(
            values=values,
            gradients=gradients,
            master=master,
            master_gradients=master_gradients,
            adam=adam,
            spans=[p for _, p in parameters],
        )

    def step(self, rate: float, *, clip_norm: float = 1.0) -> Tensor:
        """Average gradients over processes, clip, update, refresh the weights; return the gradient norm."""
        self.master_gradients.copy_(self.gradients)
        if distributed.is_initialized():
            distributed.all_reduce(self.master_gradients)
            self.master_gradients /= distributed.get_world_size()
        norm = self.master_gradients.norm()
        # A step with a broken gradient is skipped rather than let into the moments.
        scale = torch.where(norm.isfinite(), (clip_norm / (norm + 1e-6)).clamp_max(1.0), 0.0)
        self.master_gradients.nan_to_num_(0.0, 0.0, 0.0).mul_(scale)
        for group in self.adam.param_groups:
            group["lr"] = rate
        self.adam.step()
        self.values.copy_(self.master)
        self.gradients.zero_()
        return norm

    def state_dict(self) -> dict[str, object]:
        """Masters and moments, enough to resume exactly."""
        return {"master": self.master.data, "adam": self.adam.state_dict()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Restore what :meth:`state_dict` returned."""
        master = state["master"]
        assert isinstance(master, Tensor)
        with torch.no_grad():
            self.master.copy_(master)
            self.values.copy_(master)
        self.adam.load_state_dict(state["adam"])  # type: ignore[arg-type]


def _decays(name: str, parameter: nn.Parameter) -> bool:
    return parameter.dim() >= 2 and "embed" not in name and "conv1d" not in name
