"""A streamed draft head's experts come from pinned files of their own, beside the model's layers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from slotstream_core.checkpoint.tensors import Checkpoint
from slotstream_core.drafting import open_draft_experts
from slotstream_core.experts.pinned_files import PinnedFiles
from slotstream_core.experts.reading import ReadingOptions
from slotstream_core.experts.streamed import StreamedExperts
from slotstream_core.native.binding import library_path
from slotstream_core.testing import write_tiny_model
from slotstream_planner import Machine, ModelGeometry, PlanRequest, plan
from tests.core.device.test_device_kernels import DEVICE
from tests.core.pinning_device import PinningDevice

pytestmark = pytest.mark.skipif(library_path() is None, reason="installed without a compiler")


@pytest.mark.usefixtures("compiled_code_on")
def test_a_streamed_heads_records_are_fetched_as_they_lie_on_disk(tmp_path: Path) -> None:
    directory = write_tiny_model(tmp_path / "tiny", draft=True)
    request = PlanRequest(mtp="on", mtp_experts="streamed", experts_per_layer=4)
    made = plan(ModelGeometry.from_checkpoint(directory, compute="bf16"), Machine.simulated(ram_gb=16), request)
    device = PinningDevice()
    with ExitStack() as resources, Checkpoint.open(directory) as checkpoint:
        draft = open_draft_experts(
            checkpoint,
            DEVICE,
            made,
            lane_count=2,
            reading=ReadingOptions(access="cached"),
            memory=device,
            resources=resources,
        )
        assert draft is not None
        assert draft.mapped is not None
        assert isinstance(draft.experts, StreamedExperts)
        files, pool = PinnedFiles([draft.mapped]), draft.experts.pool
        files.pin(1 << 40)
        assert draft.mapped.finished.wait(240)
        assert files.pinned_bytes == draft.mapped.byte_count > 0
        pool.found_sound(0, range(draft.experts.layout.expert_count))  # scales that are to be checked are read
        lease = draft.experts.request(0, [0, 3])
        lease.wait()
        assert device.fetched == 2 * draft.experts.layout.record_bytes
        for expert, slot in zip((0, 3), lease.slots, strict=True):
            for view, extent in zip(pool.slots.views, draft.experts.layout.extents(0, expert), strict=True):
                stored = extent.path.read_bytes()[extent.offset : extent.offset + view[slot].nbytes]
                assert view[slot].tobytes() == stored
        lease.release()
    assert device.registered == {}
