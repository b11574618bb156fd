"""Both coders, for the tests of the format."""

import pytest

from slotpack.codec import Coder, NativeCoder, ReferenceCoder, choose_coder


@pytest.fixture(params=["c", "python"])
def coder(request: pytest.FixtureRequest) -> Coder:
    if request.param == "python":
        return ReferenceCoder()
    native = choose_coder()
    if not isinstance(native, NativeCoder):
        pytest.skip("the C coder was not built here")
    return native
