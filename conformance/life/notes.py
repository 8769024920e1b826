"""What an engine notes down while it decides, and tells runners as a step."""

from __future__ import annotations

from conformance.life.request import Request
from conformance.traffic.scheduler import Step


class Notes:
    """Who left since the last step, and what the next one computes.

    A request that leaves before a step that computes nothing is told with the next one that does.

    Attributes:
        num_scheduled_tokens: Of each request in the step, drafts included.
        finished_ids: Requests that ended since the last step.
        preempted_ids: Those that lost their blocks since then.

    Example:
        >>> from conformance.life.prefixes import Prefixes
        >>> request = Request("request-0", 3, 9, [5, 6, 7], Prefixes().along([5, 6, 7]))
        >>> notes = Notes()
        >>> notes.finished_ids.append("request-7")
        >>> notes.schedule(request, 2, ([4],))
        2
        >>> step = notes.make_step([request], admitted=[request])
        >>> step.finished_ids, step.new_ids, step.num_scheduled_tokens, step.new_block_ids
        (('request-7',), ('request-0',), {'request-0': 2}, {'request-0': ([4],)})
        >>> notes.finished_ids
        []
    """

    def __init__(self) -> None:
        self.num_scheduled_tokens: dict[str, int] = {}
        self.finished_ids: list[str] = []
        self.preempted_ids: list[str] = []
        self._new_block_ids: dict[str, tuple[list[int], ...]] = {}
        self._num_steps = 0

    def begin(self) -> None:
        """Begin a step of which nothing is decided yet."""
        self.num_scheduled_tokens, self._new_block_ids = {}, {}

    def schedule(self, request: Request, stop: int, new_block_ids: tuple[list[int], ...]) -> int:
        """Note that a request is computed in the step.

        Args:
            request: Before it is.
            stop: The first token that is not.
            new_block_ids: The blocks that it gets, for each KV cache group.

        Returns:
            How many tokens that is.
        """
        number = stop - request.num_computed_tokens
        self.num_scheduled_tokens[request.request_id] = number
        self._new_block_ids[request.request_id] = new_block_ids
        return number

    def make_step(self, scheduled: list[Request], admitted: list[Request]) -> Step:
        """Write the step down, and forget who left.

        Args:
            scheduled: Its requests, all of them noted.
            admitted: Those that runners do not know, or no longer.
        """
        names = [request.request_id for request in scheduled]
        overwritten = {request.request_id for request in admitted}
        step = Step(
            index=self._num_steps,
            finished_ids=tuple(self.finished_ids),
            preempted_ids=tuple(self.preempted_ids),
            new_ids=tuple(r.request_id for r in admitted if not r.is_preempted),
            resumed_ids=tuple(r.request_id for r in admitted if r.is_preempted),
            num_scheduled_tokens={name: self.num_scheduled_tokens[name] for name in names},
            new_block_ids={name: self._new_block_ids[name] for name in names},
            overwrite={name: name in overwritten for name in names},
            num_computed_tokens={r.request_id: r.num_computed_tokens for r in scheduled},
            num_prompt_tokens={r.request_id: r.num_prompt_tokens for r in scheduled},
        )
        self.finished_ids.clear()
        self.preempted_ids.clear()
        self._num_steps += 1
        return step
