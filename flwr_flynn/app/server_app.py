"""The ServerApp that `flwr run` starts.

It reads the settings, plans the run, runs it, and saves and reports its results.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from flwr_flynn._files import write_together
from flwr_flynn.app import dry_run, metrics_json
from flwr_flynn.app.console import say
from flwr_flynn.app.report.accuracy_sections import as_csv
from flwr_flynn.app.report.markup import shortened
from flwr_flynn.app.report.page import left_page, log_table, page
from flwr_flynn.app.report.sections import EQUALITIES
from flwr_flynn.app.run_config import RunConfig, default_folder
from flwr_flynn.app.run_plan import NO_LIMIT, RunPlan, plan_run
from flwr_flynn.errors import (
    AggregationError,
    ConfigError,
    FlyNNError,
    WriteError,
    full_text,
)
from flwr_flynn.federated.algorithm import compile_kernels
from flwr_flynn.federated.federation_file import Federation, exclusive
from flwr_flynn.federated.flower_log import log as flower_log
from flwr_flynn.federated.run import Run
from flwr_flynn.flower import message
from flwr_flynn.flower.records import is_simulated
from flwr_flynn.flower.secagg import LEAST_THRESHOLD
from flwr_flynn.flower.workflow import run_rounds
from flwr_flynn.model import model_file
from flwr_flynn.model.model import Model

_FEDERATION = "federation.npz"
_MODEL = "model.npz"
_METRICS = "metrics.json"
_PAGE = "report.html"
_FIGURES = "figures.csv"
_LEFT = "left.html"
WRITTEN = (_PAGE, _LEFT, _FIGURES, _MODEL, _METRICS)
"""Files that a run leaves in its folder, beside its federation."""

_PLAN = "plan.json"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run one federation, and leave its files in its folder."""
    try:
        config = RunConfig.parse(context.run_config).resolved()
        carry_out(config, RunFiles.of(config, context.run_id), grid, context)
    except Exception as error:
        print_failure(error)
        raise


def carry_out(
    config: RunConfig,
    files: RunFiles,
    grid: Grid,
    context: Context,
    command: str = "",
) -> None:
    """Plan a run, run it, save its results and report them.

    Of a dry run there is the plan alone. The report has the command, by default that of
    Flower.
    """
    start = time.monotonic()
    run_id = str(context.run_id)
    with ExitStack() as held:
        if not config.dry_run:
            # The folder goes by the file of a federation that it has by default.
            locked = {
                files.federation: "run-config federation",
                files.folder / _FEDERATION: "run-config output-dir",
            }
            for path, field in locked.items():
                held.enter_context(exclusive(path, field))
        saved = files.load(config)
        plan = plan_run(config, grid, saved, files.keeper(config, run_id))
        if config.dry_run:
            made = dry_run.plan_json(plan)
            text = json.dumps(made, indent=2) + "\n"
            write_together(files.folder, {_PLAN: text.encode()}, files.mode)
            say(*dry_run.lines(made))
            return
        if is_simulated(grid):
            # Its parties start now: what is compiled when they count is compiled once.
            compile_kernels()
        errors = _run(plan, grid, context)
        model, after, unwritten = _save(plan, files, run_id)
        seconds = round(time.monotonic() - start, 3)
        facts = {"run_id": run_id, "seconds": seconds, "command": command}
        ending = {"evaluation_errors": errors, "run": facts}
        _report(plan, files, model, after, unwritten, ending)


def _run(plan: RunPlan, grid: Grid, context: Context) -> list[str]:
    """Run all rounds, and return the types of errors in the evaluation.

    The model stands without an evaluation.
    """
    config = plan.config
    strategy = plan.strategy
    if not isinstance(strategy, message.FlyNNStrategy):
        threshold: float | None = None
        if config.secure and plan.shared:
            threshold = plan.shared.n_needed
        elif config.secure:
            threshold = LEAST_THRESHOLD
        n_rounds = strategy.num_rounds
        return run_rounds(strategy, grid, context, n_rounds, config.timeout, threshold)
    try:
        strategy.start(grid, timeout=config.timeout or NO_LIMIT)
    except Exception as error:
        due = strategy.run.due
        if due is None or due.makes_model or not strategy.run.is_enough:
            raise
        log(logging.ERROR, "FlyNN: the evaluation failed", exc_info=error)
        return [type(error).__name__]
    return []


def _save(
    plan: RunPlan, files: RunFiles, run_id: str
) -> tuple[Model, Federation, list[WriteError]]:
    """Save the federation.

    Return the model, the federation, and errors of files that could not be written.
    """
    action = plan.config.action
    try:
        model = plan.strategy.model
    except AggregationError:
        # Fewer parties than required were counted: the files stay as they were.
        if action == "train":
            files.unfinished.unlink(missing_ok=True)
        raise
    after = plan.strategy.federation(run=run_id)
    unwritten = list[WriteError]()
    is_written = True
    if action != "evaluate":
        is_written = _write(unwritten, lambda: after.save(files.federation))
    due = plan.strategy.run.due
    if due is not None and due.makes_model:
        # The file of the unfinished run stays, where there is one.
        log(logging.WARNING, "FlyNN: phase %s is not done", due.name)
    elif is_written and action in ("train", "resume"):
        files.unfinished.unlink(missing_ok=True)
    return model.model_, after, unwritten


def _report(
    plan: RunPlan,
    files: RunFiles,
    model: Model,
    after: Federation,
    unwritten: list[WriteError],
    ending: Mapping[str, object],
) -> None:
    """Write the model, `metrics.json`, its page and its figures, and print the table.

    The model is written without a report, too. Results that are unwritten or unequal
    are an error.
    """
    results = {_MODEL: model_file.to_bytes(model)}
    try:
        made = {**metrics_json.run_metrics(plan, after), **ending}
        text = json.dumps(made, indent=2, allow_nan=False) + "\n"
        texts = {
            _METRICS: text,
            _PAGE: page(made),
            _LEFT: left_page(made),
            _FIGURES: as_csv(made),
        }
        results |= {name: text.encode() for name, text in texts.items()}
    finally:
        is_written = _write(
            unwritten, partial(write_together, files.folder, results, files.mode)
        )
    if not is_written:
        say(*text.split("\n"))  # so that it is in the log
    say(*log_table(made, files.folder))
    failed = [f"results: {error}" for error in unwritten]
    unequal = [name for name in EQUALITIES if made["sha256"].get(name) is False]
    if unequal:
        failed.append(
            "every party is counted, but the model is not the one trained on the "
            f"pooled data ({', '.join(unequal)})"
        )
    if failed:
        names = [str(error.field) for error in unwritten] + unequal
        raise FlyNNError(
            "results",
            "all of them written, and equal",
            ", ".join(names),
            text="; ".join(failed),
        )


# ---- files


@dataclass(frozen=True)
class RunFiles:
    """The files of a run at the server."""

    folder: Path  # of `model.npz`, `metrics.json`, its pages and `figures.csv`
    federation: Path
    mode: int | None = None  # permissions of the files in the folder

    @property
    def unfinished(self) -> Path:
        """The state of a run that is not over, beside the federation."""
        return self.federation.with_name(f"{self.federation.stem}.unfinished.npz")

    @classmethod
    def of(cls, config: RunConfig, run_id: int) -> RunFiles:
        """The files by the settings.

        The federation has its one real path, which its lock goes by.
        """
        folder = output_folder(config, run_id)
        federation = Path(config.federation or folder / _FEDERATION)
        try:
            federation = federation.expanduser().resolve()
        except (OSError, RuntimeError, ValueError):  # an unknown home, a NUL
            raise ConfigError(
                "run-config federation", "a file", repr(config.federation[:200])
            ) from None
        if federation in [(folder / name).resolve() for name in WRITTEN]:
            expected = (
                f"a file other than the run's {_MODEL}, {_METRICS}, {_PAGE}, "
                f"{_FIGURES} and {_LEFT}"
            )
            raise ConfigError("run-config federation", expected, federation.name)
        return cls(folder, federation)

    def load(self, config: RunConfig) -> Federation | None:
        """The federation from which the run goes on; None for a new one.

        The file of a new federation must not be there.
        """
        field = "run-config federation"
        action = config.action
        if action == "train":
            # A federation beside model.npz, without a name of its own, is replaced like
            # it.
            if config.federation and self.federation.exists():
                got = f"one: {self.federation} (action = join adds to it)"
                raise ConfigError(field, "none yet", got)
            if self.unfinished.exists():
                got = f"one: {self.unfinished} (action = resume continues it)"
                raise ConfigError(field, "no run that stopped before its end", got)
            return None
        source = self.federation
        if action == "resume":
            source = self.unfinished
        if not source.is_file():
            raise ConfigError(field, "the server's own file", f"none: {source}")
        return Federation.load(source, int(config.memory_limit * 2**30))

    def keeper(self, config: RunConfig, run_id: str) -> Callable[[Run], None] | None:
        """A function that saves the state of a run after each phase.

        It does so once the candidates of the run are known.
        """
        if config.action not in ("train", "resume") or config.secure:
            return None

        def keep(run: Run) -> None:
            # A run that would be resumed at an earlier phase has its state in the file
            # already.
            due = run.due
            if not run.is_specified or due is None or run.restart is not due:
                return
            is_first = not self.unfinished.exists()
            is_saved = _write([], lambda: run.federation(run_id).save(self.unfinished))
            if is_saved and is_first:
                log(
                    logging.INFO,
                    "FlyNN: if the run stops, action = resume continues it, with "
                    "federation = %s",
                    self.federation,
                )

        return keep


def output_folder(config: RunConfig, run_id: int, mode: int = 0o777) -> Path:
    """The output folder, which is made before the work starts, with this mode."""
    folder = Path(config.output_dir or default_folder(run_id))
    try:
        folder = folder.expanduser().resolve()
        folder.mkdir(mode, parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except (OSError, RuntimeError, ValueError):  # an unknown home, a NUL
        writable = False
    if not writable:
        raise ConfigError(
            "run-config output-dir",
            "a folder that can be written to",
            repr(str(folder)[:200]),
        )
    return folder


def _write(unwritten: list[WriteError], write: Callable[[], object]) -> bool:
    """Write a result, or log an error and add it to `unwritten`.

    Other results may still be written.
    """
    try:
        write()
    except WriteError as error:
        log(logging.ERROR, "FlyNN: %s", full_text(error))
        unwritten.append(error)
        return False
    return True


# ---- the last line of a failed run

# In a simulation Flower's process learns of an exception ten seconds or more later,
# after Ray has started. So a line with the reason is printed where the exception is
# raised. Flower then logs the exception and, last of all, a page about its exit code;
# the line is added to that page. docs/how_to/run_status.md says how to read the status
# of a run.

_LONGEST_REASON = 2000  # characters
_EXIT_PAGE = "Exit Code:"  # its first words in Flower 1.23 to 1.42


def print_failure(error: BaseException) -> None:
    """Print the line of a failed run, and add it to the exit page that Flower will log.

    An error of this package needs no traceback: the line has all of it.
    """
    reason = f"{type(error).__name__}: {full_text(error)}"
    line = f"FAILED: {shortened(reason, _LONGEST_REASON)}"
    is_ours = isinstance(error, FlyNNError | MemoryError)
    say(line)

    def with_line(record: logging.LogRecord) -> bool:
        """End the exit page with the line, and drop an error of which it has all."""
        text = record.getMessage()
        if text.startswith(_EXIT_PAGE):
            if is_ours:
                text = text.splitlines()[0]
            record.msg = f"{text}\n{line}"
            record.args = ()
        return not (is_ours and record.exc_info and record.exc_info[1] is error)

    flower_log.addFilter(with_line)
