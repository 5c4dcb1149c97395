"""Two ranks of a data-parallel program on one node daemon: a lease each, one application, nothing left behind."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import FIND_SUPPORT, shows, wait_until
from support.node.daemons import environment, running_daemon

pytestmark = [shows("node"), pytest.mark.long]

PROGRAM = (
    FIND_SUPPORT
    + """
import sys, time
import torch
from sambaflow import samba
from sambaflow.samba import utils
from sambaflow.samba.utils.argparser import parse_app_args
from support.programs import LogReg, classifier_inputs

args = parse_app_args(sys.argv[1:])
model, inputs = LogReg(), classifier_inputs()
samba.from_torch_model_(model)
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
if args.command == "compile":
    samba.session.compile(model, inputs, optimizer, config_dict=vars(args))
else:
    outputs = utils.trace_graph(model, inputs, optimizer, pef=args.pef)
    while True:
        samba.session.run(inputs, outputs, data_parallel=True)
        print("step", flush=True)
        time.sleep(0.02)
"""
)


@pytest.mark.parametrize("on_loss", ["fail", "continue"])
def test_each_rank_has_a_chip_of_its_own_and_a_killed_one_leaves_nothing_behind(on_loss: str, tmp_path: Path) -> None:
    with running_daemon("SN10-8") as daemon:
        plain = environment(daemon.home, RDUKIT_KERNELS="portable", RDUKIT_DISTRIBUTED_ON_LOSS=on_loss)
        command = [sys.executable, "-c", PROGRAM]
        options = ["--data-parallel", "-ws", "2", "-b", "8", "--arch", "sn10", "--log-level", "error"]
        place = ["--output-folder", str(tmp_path), "--pef-name", "replica"]
        subprocess.run([*command, "compile", *options, *place], env=plain, check=True, timeout=60)
        pef = str(tmp_path / "replica" / "replica.pef")
        ranks = [
            subprocess.Popen(
                [*command, "run", *options, "--pef", pef], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**plain, "PMI_RANK": str(number), "PMI_SIZE": "2"},
            )
            for number in range(2)
        ]  # fmt: skip
        try:
            for rank in ranks:
                assert rank.stdout is not None
                assert rank.stdout.readline() == "step\n", rank.stderr
            with daemon.connect() as client:
                status = client.call("status")
                by_chip = {tile["rdu"]: tile["lease"] for tile in status["tiles"] if tile["lease"]}
                assert [len(lease["tiles"]) for lease in status["leases"]] == [4, 4]
                assert len(set(by_chip.values())) == len(by_chip) == 2
                assert len({lease["launch"] for lease in status["leases"]}) == 1
                os.kill(ranks[1].pid, signal.SIGKILL)
                if on_loss == "continue":
                    assert ranks[0].stderr is not None and ranks[0].stdout is not None
                    while "rank 1 was lost at step" not in ranks[0].stderr.readline():
                        assert ranks[0].poll() is None
                    for _ in range(5):
                        assert ranks[0].stdout.readline() == "step\n"
                    wait_until(lambda: len(client.call("status")["leases"]) == 1)
                    assert [len(lease["tiles"]) for lease in client.call("status")["leases"]] == [4]
                    ranks[0].kill()
                    wait_until(lambda: not client.call("status")["leases"])
                    return
                _, words = ranks[0].communicate(timeout=60)
                assert ranks[0].returncode == 1
                assert "PeerLost: rank 0 of 2" in words
                wait_until(lambda: not client.call("status")["leases"])
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
