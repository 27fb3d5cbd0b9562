"""The process of a hub that answers programs of its own organisation: ``POST /predict``, from what jobs have predicted.

A job that predicts leaves at those who get predictions what every silo adds to the scores. They answer from it until
the approvals of that job expire, whatever else is computed meanwhile, and without any partner.
"""

import logging
import os
import signal
import sys
import time
from pathlib import Path

from tdcd.core.words import one_line
from tdcd.prediction.model import Model
from tdcd.runtime.certificates.revocation import REVOKED
from tdcd.runtime.process.log import FAILED, LogLevel, event, open_log
from tdcd.serving.address import is_socket, listen
from tdcd.serving.gathered import read_gathered
from tdcd.serving.scorer import KnownPhi, NoPredictionsError, PartsScorer
from tdcd.serving.service import PredictionService, run
from tdcd.standing.children import end_with_service
from tdcd.standing.home import Home
from tdcd.standing.jobs import Jobs, JobState
from tdcd.standing.step import PHI, REFUSED, RUN

GRACE_S = 15.0
"""How long requests that have begun may take."""
NOTHING = "no job has predicted for this silo: tdcd propose --predict JOB makes one"


class Answers:
    """What a hub answers from, as its jobs are now."""

    def __init__(self, path: Path) -> None:
        """Take the party's own file."""
        self._path, self.home = path, Home(path)
        self._jobs = self.home.jobs()

    def files(self) -> list[Path]:
        """What :meth:`load` reads."""
        home = self.home
        if home.log.refresh():
            self._jobs = home.jobs()
        files = [Path(home.own.certs) / REVOKED]
        for state, former in _predicted(home, self._jobs):
            files += [home.job_folder(state) / PHI, home.job_folder(former) / RUN]
        return files

    def load(self) -> PartsScorer:
        """From the job that was proposed last."""
        home = Home(self._path)
        jobs = home.jobs()
        predicted = _predicted(home, jobs)
        if not predicted:
            raise NoPredictionsError(NOTHING)
        state, former = predicted[-1]
        model = Model.load(home.job_folder(former) / RUN)
        model.check_meaning()
        model.check_complete("phi that is known ahead")
        parts = read_gathered(home.job_folder(state) / PHI, model)
        known = {}
        for name, scores in parts.items():
            hubs = [f"hub.{silo}" for silo in name.split(" + ")]
            if hubs == [home.party]:
                known[name] = KnownPhi(scores)
                continue
            refusals = [why for hub in hubs for why in jobs.badly_approved(hub, state)]
            renewal = f"propose the prediction by job {former.name[:12]} again"
            known[name] = KnownPhi(scores, state.offer.expires, "; ".join(refusals), renewal)
        source = f"job {state.name[:12]}, by the model of job {former.name[:12]}"
        return PartsScorer(model, known, summands=[*parts], source=source)


def _predicted(home: Home, jobs: Jobs) -> list[tuple[JobState, JobState]]:
    """The jobs that have predicted for this hub, with those whose models they are of, the one proposed last at the end.

    Not those of models that were deleted.
    """
    found = []
    for state in jobs.states.values():
        former = jobs.former(state.offer)
        if state.offer.kind != "predict" or home.party not in state.offer.to or former is None or state.refusals:
            continue
        is_there = (home.job_folder(state) / PHI).is_file() and (home.job_folder(former) / RUN).is_dir()
        if is_there and jobs.deletion_of(former) is None:
            found.append((state, former))
    return found


def main(path: str, level: LogLevel) -> int:
    """Answer until SIGTERM, or until the service has ended."""
    end_with_service(_end)
    open_log(path, level)
    try:
        answers = Answers(Path(path))
        open_log(answers.home.party, level)
        own = answers.home.own
        assert own.serve is not None
        service = PredictionService(answers.files, answers.load, is_private=not is_socket(own.serve))
        # The server ends by itself on a signal, and passes it on: that must not end the process before it is done.
        signal.signal(signal.SIGTERM, lambda *_: None)
        run(service, listen(own.serve, "serve ="))
    except (ValueError, OSError) as error:
        event(FAILED, logging.ERROR, why=one_line(str(error)))
        return REFUSED
    return 0


def _end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_S)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))  # type: ignore[arg-type]
