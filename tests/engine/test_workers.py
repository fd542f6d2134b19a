"""Workers whose sums would have other bits are refused, by name and with what to do."""

from typing import Any

import pytest

from dasrel.engine.workers import REMEDIES, bits_of_process, check_this_worker, refuse_unlike
from dasrel.errors import ClusterError

HERE = bits_of_process()


def test_every_difference_has_a_line_and_a_remedy() -> None:
    assert HERE.keys() == REMEDIES.keys()
    refuse_unlike({"tcp://a:1": dict(HERE)})
    for name, remedy in REMEDIES.items():
        with pytest.raises(ClusterError) as failed:
            refuse_unlike({"tcp://a:1": dict(HERE), "tcp://b:2": {**HERE, name: "else"}})
        assert str(failed.value) == (
            f"results would have other bits: {name} else at tcp://b:2 and {HERE[name]} here; {remedy}"
        )


def test_a_worker_that_cannot_answer_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"dasrel cannot be imported at tcp://b:2 \(No module named 'dasrel'\)"):
        refuse_unlike({"tcp://b:2": ModuleNotFoundError("No module named 'dasrel'")})
    with pytest.raises(ClusterError, match="dasrel of another version at tcp://b:2"):
        refuse_unlike({"tcp://b:2": AttributeError("no such function")})


def test_a_worker_that_joins_later_is_refused_by_its_first_task(client: Any) -> None:
    client.submit(check_this_worker, tuple(HERE.items())).result()
    other = tuple({**HERE, "kernels": "else"}.items())
    with pytest.raises(ClusterError, match=r"kernels \S+ at tcp://\S+, which joined later, and else in the command"):
        client.submit(check_this_worker, other).result()
