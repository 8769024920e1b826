"""Time a step up to the forward pass, alternately without and with the plugin."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tools.engine_demo.engine import Engine, Request, generate, runner_of

if TYPE_CHECKING:
    from kvtwin_vllm.installation import Installation

METHODS: Final = ("_prepare_inputs", "_build_attention_metadata")
"""The methods of vLLM's model runner whose times are added up."""

STEPS_IN_TURN: Final = 10
NOT_COUNTED: Final = 3
"""The first steps of each turn, in which Python looks up attributes anew."""


class Time(NamedTuple):
    """The CPU time of this thread that a step spends in a function: medians over steps."""

    plain_us: float
    plugin_us: float


def time_steps(
    engine: Engine,
    installation: Installation,
    num_requests: int,
    num_steps: int,
    *,
    each_function: bool = False,
) -> dict[str, Time]:
    """Time steps with `num_requests` requests, alternately ten without and ten with the plugin.

    Both therefore run similar batches under the same load of the machine.

    Args:
        engine: The engine, with the plugin.
        installation: The installation of the plugin.
        num_requests: Requests in a batch.
        num_steps: Steps with all these requests; those with fewer, while they start, do not count.
        each_function: Time the replaced functions, not `METHODS`, which call them: timing both at
            once would slow down `METHODS`.

    Returns:
        Times, by the name of the function.
    """
    turns = _Turns(runner_of(engine), installation, num_requests, each_function)
    try:
        generate(engine, _make_requests(num_requests, num_steps))
    finally:
        turns.end()
    return {
        name: Time(median(plain) / 1000, median(plugin) / 1000)
        for name, (plain, plugin) in turns.spent.items()
        if plain and plugin
    }


class _Turns:
    """Runs the steps of a model runner alternately without and with the plugin, and times them.

    Attributes:
        spent: By function, its times in ns in the steps without, and with the plugin.
    """

    def __init__(
        self, runner: Any, installation: Installation, num_requests: int, each_function: bool
    ) -> None:
        self.spent: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        self._runner, self._installation = runner, installation
        self._num_requests, self._each_function = num_requests, each_function
        self._number = 0
        self._step: dict[str, int] = {}  # times in the step that is running
        self._names = ("execute_model", *(() if each_function else METHODS))
        runner.execute_model = self._execute_model
        for name in self._names[1:]:
            setattr(runner, name, self._timed(name, self._method(name)))

    def end(self) -> None:
        """Let the runner run its own methods again, with the plugin."""
        for name in self._names:
            delattr(self._runner, name)
        self._installation.activate()

    def _execute_model(self, *args: Any, **kwargs: Any) -> Any:
        turn, place = divmod(self._number, STEPS_IN_TURN)
        self._number += 1
        if place == 0:
            switch = self._installation.activate if turn % 2 else self._installation.deactivate
            switch(*([self._timed] if self._each_function else []))
        self._step.clear()
        result = self._method("execute_model")(*args, **kwargs)
        if place >= NOT_COUNTED and self._runner.input_batch.num_reqs == self._num_requests:
            for name, took in self._step.items():
                self.spent[name][turn % 2].append(took)
        return result

    def _method(self, name: str) -> Callable[..., Any]:
        """Return a function that looks up and calls the current method of the runner's class."""
        return lambda *args, **kwargs: getattr(type(self._runner), name)(
            self._runner, *args, **kwargs
        )

    def _timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.thread_time_ns()
            result = function(*args, **kwargs)
            self._step[name] = self._step.get(name, 0) + time.thread_time_ns() - start
            return result

        return call


def _make_requests(number: int, num_steps: int) -> list[Request]:
    """Make requests that all run for some steps, with contexts of one to five chunks."""
    return [
        Request([3 + (7 * i + k) % 490 for k in range(40 + 37 * i % 200)], num_steps + number // 2)
        for i in range(number)
    ]
