"""Text for people: nothing secret in it."""

import pytest

from dasrel.util.text import redacted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://user:pass@host/b", "s3://***@host/b"),
        ("at https://tok3n@host/x and more", "at https://***@host/x and more"),
        ("https://h/a?X-Amz-Signature=abc&b=1 failed", "https://h/a?*** failed"),
        ("{'secret': 'abc', 'endpoint': 'e'}", "{'secret': '***', 'endpoint': 'e'}"),
        ("password=hunter2, next", "password=***, next"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ("key is [3], was [2]; me@home.org", "key is [3], was [2]; me@home.org"),
    ],
)
def test_credentials_are_taken_out(text: str, shown: str) -> None:
    assert redacted(text) == shown
    assert redacted({"a": [text, 1, None]}) == {"a": [shown, 1, None]}
