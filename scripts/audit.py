"""Look for known vulnerabilities in the packages that requirements.lock pins: ``make audit``.

Exits with 0 where none is known, 1 where some are, 2 where the database could not be asked: then nothing was checked.
"""

import subprocess
import sys
from pathlib import Path
from typing import Final

LOCK: Final = Path(__file__).resolve().parents[1] / "requirements.lock"
NOT_CHECKED: Final = 2
#: What pip-audit says where nobody answers.
_AWAY: Final = (
    "ConnectionError", "ConnectTimeout", "ReadTimeout", "ProxyError", "Could not connect", "Failed to establish",
    "Max retries exceeded", "Name or service not known", "Temporary failure in name resolution", "503", "502", "403",
)  # fmt: skip


def judge(status: int, said: str) -> tuple[int, str]:
    """Return the exit status and the summary, given pip-audit's (pure)."""
    if status == 0:
        return 0, "audit: no known vulnerability in requirements.lock"
    if "Found" in said and "vulnerabilit" in said:
        return 1, "audit: take versions without them: make lock ARGS=--upgrade"
    why = "its database could not be reached" if any(word in said for word in _AWAY) else "pip-audit failed"
    last = said.strip().splitlines()[-1:] or ["it said nothing"]
    return NOT_CHECKED, f"audit: NOTHING WAS CHECKED: {why}: {last[0][:300]}"


def main() -> None:
    """Run pip-audit over the lock."""
    command = [
        sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--disable-pip", "--require-hashes",
        "--vulnerability-service", "osv", "--progress-spinner", "off", *sys.argv[1:],
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout)
    status, word = judge(done.returncode, done.stderr + done.stdout)
    if status == 1:
        sys.stderr.write(done.stderr)
    print(word, file=sys.stderr)
    sys.exit(status)


if __name__ == "__main__":
    main()
