"""The example of docs/verbs.md runs as it stands."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "docs" / "verbs.md").read_text()


def test_the_example_runs_and_completes_both_requests(capsys):
    [example] = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
    exec(compile(example, "docs/verbs.md", "exec"), {})
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in shown[:2]] == [
        ["1", "SUCCESS", "RDMA_READ", "65536"],
        ["2", "SUCCESS", "FETCH_ADD", "8"],
    ]
