"""What crosses between a program, the host and MLX: what kernels publish, slots that the host gives, and streams."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from slotstream_core.checkpoint.config import Qwen4ExpConfig
from slotstream_core.errors import DeviceHung
from slotstream_core.models.qwen4_exp.device.kernels import DeviceKernels, KernelSpec, Output
from slotstream_core.models.qwen4_exp.device.launching import (
    LaunchedKernels,
    LaunchTarget,
    Place,
    Program,
    keep_for_ever,
)
from slotstream_core.models.qwen4_exp.host_products import Floats

FORECAST_THREADS = 256
HAND_OVER_THREADS = 256

ANNOUNCE = """
  __threadfence_system();
  word[0] = (unsigned int)number;
"""

PUBLISH = """
  if (threadIdx.x < TOP) out[threadIdx.x] = ids[threadIdx.x];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) word[0] = (unsigned int)number;
"""

PUBLISH_FORECAST = """
  for (int i = threadIdx.x; i < EXPERTS; i += blockDim.x) out[i] = logits[i];
  __threadfence_system();
  __syncthreads();
  if (threadIdx.x == 0) word[0] = (unsigned int)number;
"""

HAND_OVER = """
  // where the values go is told by number, for MLX does not let a kernel write into what it reads
  const int place = blockIdx.x * blockDim.x + threadIdx.x;
  if (place < VALUES) reinterpret_cast<__nv_bfloat16*>(address[0])[place] = values[place];
  if (place == 0) done[0] = 1;
"""

_WORD = Output(name="word", shape=(1,), dtype=mx.uint32)


class Announcement:
    """A number on the host that says that everything launched before is done.

    Args:
        kernels: Compiles and runs kernels.
        number: The argument that holds the number.
    """

    def __init__(self, kernels: LaunchedKernels, number: Place) -> None:
        self._signal = kernels.signal()
        self._program: Program | None = None
        self._number = number
        self._spec = KernelSpec(
            name="announce", inputs=(), outputs=(_WORD,), constants={}, body=ANNOUNCE, blocks=1, threads=1,
            values=("number",),
        )  # fmt: skip

    def add(self, program: Program) -> None:
        """Append it."""
        program.add(self._spec, self._signal.address, self._number)
        self._program = program

    def wait(self, number: int) -> None:
        """Return when the number was announced.

        Raises:
            DeviceHung: See `Signal.wait`; what the program refers to is kept for ever.
            BackendError: See `Signal.wait`.
        """
        try:
            self._signal.wait(number)
        except DeviceHung:
            keep_for_ever(self._program)
            raise

    def drain(self) -> None:
        """Return when nothing is under way any more, announced or not.

        Raises:
            DeviceHung: See `Signal.wait`; whoever gave work keeps what that refers to.
        """
        self._signal.drain()


def run_once(kernels: LaunchedKernels, program: Program) -> None:
    """Run a program from its beginning to its end, which an announcement becomes, and return when that is reached.

    Raises:
        BackendError: A kernel is refused, or the device failed.
        DeviceHung: See `Announcement.wait`.
    """
    number = program.place("number")
    done = Announcement(kernels, number)
    done.add(program)
    program.set(number, 1)
    program.run()
    done.wait(1)


class PublishedIds:
    """The ids that a router chose, on the host.

    Args:
        kernels: Compiles and runs kernels.
        config: Sizes.
        number: The argument that holds the number that tells of them.

    Attributes:
        signal: To wait for them.
        ids: Them, [1, top]; rewritten by each launch.
    """

    def __init__(self, kernels: LaunchedKernels, config: Qwen4ExpConfig, number: Place) -> None:
        top = config.num_experts_per_tok
        self._memory = kernels.target.pinned(4 * top)
        self.signal = kernels.signal()
        self.ids: npt.NDArray[np.int32] = self._memory.data.view(np.int32).reshape(1, top)
        self._number = number
        self._spec = KernelSpec(
            name="publish_ids",
            inputs=("ids",),
            outputs=(Output(name="out", shape=(1, top), dtype=mx.int32), _WORD),
            constants={"TOP": top},
            body=PUBLISH,
            blocks=1,
            threads=-(-top // 32) * 32,
            values=("number",),
        )

    def add(self, program: Program, ids: mx.array) -> None:
        """Append their publication."""
        program.add(self._spec, ids, self._memory.address, self.signal.address, self._number)


class PublishedForecast:
    """The forecast logits of a router, on the host.

    Args:
        kernels: Compiles and runs kernels.
        config: Sizes.
        number: The argument that holds the number that tells of them.

    Attributes:
        signal: To wait for them.
        logits: float32 [1, experts]; rewritten by each launch.
    """

    def __init__(self, kernels: LaunchedKernels, config: Qwen4ExpConfig, number: Place) -> None:
        experts = config.num_experts
        self._memory = kernels.target.pinned(4 * experts)
        self.signal = kernels.signal()
        self.logits: Floats = self._memory.data.view(np.float32).reshape(1, -1)
        self._number = number
        self._spec = KernelSpec(
            name="publish_forecast",
            inputs=("logits",),
            outputs=(Output(name="out", shape=(1, experts), dtype=mx.float32), _WORD),
            constants={"EXPERTS": experts},
            body=PUBLISH_FORECAST,
            blocks=1,
            threads=FORECAST_THREADS,
            values=("number",),
        )

    def add(self, program: Program, logits: mx.array) -> None:
        """Append their publication."""
        program.add(self._spec, logits, self._memory.address, self.signal.address, self._number)


class GivenSlots:
    """The slots of a row's experts, which the host gives by value: two in each number of a launch.

    Args:
        program: Where they are needed.
        top: How many.
    """

    def __init__(self, program: Program, top: int) -> None:
        pairs = [f"pair{index}" for index in range(-(-top // 2))]
        self._top = top
        self._places = [program.place(name) for name in pairs]
        lines = [
            f"  if (threadIdx.x == {index}) slots[{index}] = (int)(pair{index // 2} >> {32 * (index % 2)});"
            for index in range(top)
        ]
        self._spec = KernelSpec(
            name="place_slots",
            inputs=(),
            outputs=(Output(name="slots", shape=(1, top), dtype=mx.int32),),
            constants={"TOP": top},
            body="\n".join(lines),
            blocks=1,
            threads=-(-top // 32) * 32,
            values=tuple(pairs),
        )

    def add(self, program: Program, slots: mx.array) -> None:
        """Append what writes them to ``slots``."""
        program.add(self._spec, slots, *self._places)

    def entries(self, program: Program) -> npt.NDArray[np.int32]:
        """What to write them to before a run, [1, top]; valid until something is added to the program."""
        return program.entries(self._places).view(np.int32)[: self._top].reshape(1, -1)


class Entrance:
    """Where MLX puts the streams that a run of a program begins with.

    Args:
        device: Makes the kernel that MLX runs.
        target: Knows addresses.
        streams: An array of the program, [1, streams, hidden], bfloat16.
    """

    def __init__(self, device: DeviceKernels, target: LaunchTarget, streams: mx.array) -> None:
        self._kernel = device.kernel(
            KernelSpec(
                name="hand_over",
                inputs=("values", "address"),
                outputs=(Output(name="done", shape=(1,), dtype=mx.int32),),
                constants={"VALUES": streams.size},
                body=HAND_OVER,
                blocks=-(-streams.size // HAND_OVER_THREADS),
                threads=HAND_OVER_THREADS,
            )
        )
        self._streams = streams
        self._address = mx.array(target.addresses([streams]), mx.int64)
        mx.eval(self._address)

    def take(self, streams: mx.array) -> mx.array:
        """Return what to evaluate before the program runs."""
        return self._kernel(streams, self._address)[0]
