"""A check of error messages: every error of the user is one line."""

from collections.abc import Callable
from typing import Any

import pytest

from bfn.core.errors import UserError


def refused(pattern: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Check that a call raises a UserError with a message of one line in which the pattern is found."""
    with pytest.raises(UserError, match=pattern) as caught:
        call(*arguments, **options)
    assert "\n" not in str(caught.value)
