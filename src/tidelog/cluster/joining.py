"""How a node finds out who it is: a founder, a member that comes back, or a newcomer.

A directory that is empty proves nothing: the node may be starting for the first time, or its disk
may have been lost. So a founder without an identity asks the other founders first:

    one has a cluster that knows this birth     this node founded it too, and goes on
    one has a cluster that does not             a newcomer: it asks to be let in, and a majority of
                                                group 0 grants a revision before it votes anywhere
    all are without a cluster                   they found one, whose id follows from their births
    else                                        wait for those who do not answer, and say so

A newcomer that takes the place of a former self (same id, another birth) is let in by itself. A
second process with the id of a node that is alive is turned away, before it takes part.
"""

import asyncio
import itertools
import logging
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from tidelog.cluster import strictjson
from tidelog.cluster.calls import Admission, Application, Call, Who, refusal_of
from tidelog.cluster.errors import ClusterError, Problem, StartFailed
from tidelog.cluster.identity import Identity, cluster_id_of, load_identity, save_identity
from tidelog.cluster.model import CONTROLLER_GROUP, Address
from tidelog.cluster.registry import NAME as REGISTRY
from tidelog.cluster.registry import Registry
from tidelog.raft.types import NodeId
from tidelog.rpc import RpcError

if TYPE_CHECKING:
    from tidelog.cluster.config import Seed
    from tidelog.cluster.node import Node

log = logging.getLogger(__name__)

JOIN_ATTEMPT_S: Final = 2.0
JOIN_PAUSE_S: Final = 0.03
PATIENT_ATTEMPTS: Final = 20
WHO_S: Final = 1.0
# Pauses between questions to the other founders: at first they start at the same time as this one.
ASK_PAUSE_S: Final = 0.03
ASK_PAUSE_LATER_S: Final = 0.25
SOON: Final = 40  # rounds before the pauses are longer
COMPLAIN_S: Final = 3.0
# A founder that seems to be a newcomer looks again who else is there after this time without an
# answer: the cluster that it heard of may be gone.
NEWCOMER_S: Final = 5.0
MAJORITY_S: Final = 10.0
DATA: Final = ("topics", REGISTRY)  # what a directory that was in use has


@dataclass(frozen=True, slots=True)
class Founding:
    """What the founders agree on."""

    cluster_id: str
    births: Mapping[str, str]


class Joining:
    def __init__(self, node: "Node") -> None:
        self._node = node
        self.incarnation = uuid.uuid4().hex  # of this process
        self.identity: Identity
        self.registry: Registry
        self._may_found = True
        self._majority_due: float | None = None  # when to say next that it is gone
        self._news = asyncio.Event()  # another founder has asked: it is there

    # --- Memory ---------------------------------------------------------------------------------

    def remember(self, *, knows_of_a_cluster: bool) -> None:
        """Read who this node is, or begin a life; raises `StartFailed`.

        A node whose secret or token names a cluster founds no other.
        """
        node = self._node
        data, disk = node.config.data, node.groups.disk
        identity = load_identity(data)
        registry = None if identity is None else Registry.load(disk, identity.birth)
        used = any((data / name).exists() for name in DATA)
        self._may_found = not used and not knows_of_a_cluster
        if identity is not None and registry is None and identity.revision is not None:
            log.warning(
                "%s is missing or damaged: this node does not know what it promised, and joins its"
                " cluster as a new one",
                data / REGISTRY,
            )
            identity = replace(Identity.new(node.id), cluster_id=identity.cluster_id)
            self._may_found = False
            save_identity(disk, identity)
        elif identity is None:
            identity = Identity.new(node.id)
            if used:
                log.warning(
                    "%s holds data, but its identity is gone: this node joins as a new one", data
                )
            save_identity(disk, identity)
        elif identity.revision is None:
            self._may_found = not knows_of_a_cluster and not (data / "topics").exists()
        self.registry = registry or Registry.begin(disk, identity.birth)
        self.identity = identity

    def _save(self, identity: Identity) -> None:
        save_identity(self._node.groups.disk, identity)
        self.identity = identity

    # --- Who is this? ---------------------------------------------------------------------------

    def me(self) -> Who:
        identity = self.identity
        empty = identity.revision is None
        return Who(
            identity.id,
            identity.birth if self._may_found or not empty else "",
            self.incarnation,
            identity.cluster_id,
            identity.births,
        )

    def on_who(self, payload: bytes) -> bytes:
        """Another node asks; it may be a founder that waits as this one does."""
        strictjson.read(Who, payload)
        self._news.set()
        return strictjson.write(self.me())

    async def who_is_at(self, address: Address) -> Who:
        """Ask what runs there; raises `OSError` or `NotThis`."""
        payload = strictjson.write(self.me())
        answer = await self._node.network.call_address(
            address.host, address.port, Call.WHO, payload, WHO_S
        )
        return strictjson.read(Who, answer)

    async def is_another(self, address: Address, node: NodeId, incarnation: str) -> bool:
        """Whether another process than this one answers there as that node.

        One that does not answer in time is asked again: it may only be busy.
        """
        for _ in range(2):
            try:
                who = await self.who_is_at(address)
            except TimeoutError:
                continue
            except (OSError, strictjson.NotThis):
                return False
            return who.id == node and who.incarnation != incarnation
        return False

    # --- Becoming somebody ----------------------------------------------------------------------

    async def settle(self, application: Application) -> None:
        """Return once this node has a revision, which it may take part under."""
        if self.identity.revision is None:
            await self._begin(application)
        else:
            await self._make_sure_of_the_place(application)
        if self.identity.address != application.rpc:
            self._save(replace(self.identity, address=application.rpc))

    async def _make_sure_of_the_place(self, application: Application) -> None:
        """Do not take part twice: this directory may be a copy of one that is in use."""
        before = self.identity.address
        if before is None or before == application.rpc:
            return
        if await self.is_another(before, self._node.id, self.incarnation):
            raise StartFailed(
                f"node {self._node.id} runs already, at {before}: stop it first, or give this node"
                " an id and a data directory of its own"
            )

    async def _begin(self, application: Application) -> None:
        others = [seed for seed in self._node.config.seeds if seed.id != self._node.id]
        founder = self._node.id in self._node.founders
        while self.identity.revision is None:
            patience: float | None = None
            if founder and not self.identity.cluster_id:
                founding = await self._ask_founders(others)
                if founding is not None:
                    self._save(
                        replace(
                            self.identity,
                            cluster_id=founding.cluster_id,
                            births=founding.births,
                            revision=0,
                            address=application.rpc,
                        )
                    )
                    return
                patience = NEWCOMER_S
            asked = replace(application, birth=self.identity.birth)
            admission = await self.apply(asked, patience)
            if admission is not None:
                self.become(admission)

    def become(self, admission: Admission) -> None:
        """Take the revision that a majority of group 0 granted."""
        fresh = self.identity.revision is None
        self._save(
            replace(
                self.identity,
                cluster_id=admission.cluster_id,
                revision=admission.revision,
                since=admission.revision if fresh else self.identity.since,
            )
        )

    # --- Founding -------------------------------------------------------------------------------

    async def _ask_founders(self, others: "list[Seed]") -> Founding | None:
        """Return what to found with the others; None if there is a cluster without this node."""
        loop = self._node.loop
        complain_at = loop.time() + COMPLAIN_S
        for attempt in itertools.count():
            self._news.clear()
            answers = await asyncio.gather(*map(self._ask_founder, others))
            found = [answer for answer in answers if isinstance(answer, Who)]
            clusters = [who for who in found if who.cluster_id]
            me = str(self._node.id)
            if any(who.births.get(me) != self.identity.birth for who in clusters):
                return None
            if self._may_found:
                if clusters:
                    return Founding(clusters[0].cluster_id, clusters[0].births)
                if len(found) == len(others) and all(who.birth for who in found):
                    births = {me: self.identity.birth}
                    births |= {str(who.id): who.birth for who in found}
                    return Founding(cluster_id_of(births), births)
            if loop.time() >= complain_at:
                complain_at = loop.time() + COMPLAIN_S
                self._complain(others, answers)
            with_pause = ASK_PAUSE_S if attempt < SOON else ASK_PAUSE_LATER_S
            try:
                async with asyncio.timeout(with_pause):
                    await self._news.wait()
            except TimeoutError:
                pass
        raise AssertionError("there is no last attempt")

    async def _ask_founder(self, seed: "Seed") -> Who | str:
        """Return who answers there, or why nothing of use does."""
        try:
            who = await self.who_is_at(Address(seed.host, seed.port))
        except (OSError, strictjson.NotThis) as error:
            return str(error)
        if who.id != seed.id:
            return f"node {who.id} answers at its address"
        return who

    def _complain(self, others: "list[Seed]", answers: "list[Who | str]") -> None:
        silent = [
            f"node {seed.id} at {seed.host}:{seed.port} ({answer})"
            for seed, answer in zip(others, answers, strict=True)
            if isinstance(answer, str)
        ]
        if silent:
            log.info(
                "this node has an empty directory, and cannot know whether there is a cluster"
                " already: waiting for %s",
                ", ".join(silent),
            )
        elif not self._may_found:
            log.warning(
                "%s holds data and no identity, so this node founds no cluster with it, and no"
                " other founder has one: restore node.json, run `tidelog node recover` on a"
                " node that has its own, or empty the directory",
                self._node.config.data,
            )
        else:
            log.info("waiting for founders that hold data and do not know their cluster")

    # --- Being let in ---------------------------------------------------------------------------

    def application(self, rpc: Address, kafka: Address, release: int) -> Application:
        identity = self.identity
        return Application(
            identity.id,
            self._node.config.rack,
            rpc,
            kafka,
            release,
            identity.birth,
            identity.cluster_id,
            identity.revision,
            lost=False,
            incarnation=self.incarnation,
        )

    async def apply(self, application: Application, patience: float | None) -> Admission | None:
        """Ask until this node is let in; raises `StartFailed` if it never will be.

        With `patience`, return None after that many seconds.
        """
        loop = self._node.loop
        end = None if patience is None else loop.time() + patience
        payload = strictjson.write(application)
        complaint, complained_at = "", 0.0
        for attempt in itertools.count():
            self._node.check_follows()
            for ask in self._doors(payload, attempt):
                try:
                    admission = strictjson.read(Admission, await ask())
                except RpcError as error:
                    problem = refusal_of(str(error))
                    if problem.problem in (Problem.UNKNOWN_NODE, Problem.NODE_EXISTS):
                        raise StartFailed(problem.message) from error
                    reason = problem.message
                except ClusterError as error:
                    if error.problem in (Problem.UNKNOWN_NODE, Problem.NODE_EXISTS):
                        raise StartFailed(error.message) from error
                    reason = error.message
                except (OSError, strictjson.NotThis) as error:
                    reason = str(error)
                else:
                    self._node.meet(admission.version, admission.peers)
                    return admission
                self._complain_of_majority()
                if reason != complaint or loop.time() >= complained_at + COMPLAIN_S:
                    complaint, complained_at = reason, loop.time()
                    log.info("not a member yet: %s", reason)
            if end is not None and loop.time() >= end:
                return None
            await asyncio.sleep(JOIN_PAUSE_S)
        raise AssertionError("there is no last attempt")

    def _complain_of_majority(self) -> None:
        """Say now and then that the controller has no majority, and what the way on is."""
        node, now = self._node, self._node.loop.time()
        hosted = node.groups.get(CONTROLLER_GROUP)
        if hosted is None or node.controller_id() is not None or self._majority_due is None:
            self._majority_due = now + MAJORITY_S
            return
        if now < self._majority_due:
            return
        self._majority_due = now + MAJORITY_S
        voters = hosted.replica.core.configuration.voters
        others = (
            f"node {each.id} {'has no leader' if node.is_alive(each.id) else 'does not answer'}"
            for each in voters
            if each.id != node.id
        )
        log.warning(
            "the majority of the controller is not there: it takes %d of %d voters, and %s. Start"
            " what is down. If disks are gone for good, stop this node and run"
            " `tidelog node recover --data %s`, which goes on with what is left here",
            len(voters) // 2 + 1,
            len(voters),
            ", ".join(others),
            node.config.data,
        )

    def _doors(self, payload: bytes, attempt: int) -> Iterator[Callable[[], Awaitable[bytes]]]:
        """Whom to ask: the leader of group 0, or the seeds, who know.

        A replica of group 0 soon hears of its leader, unless the leader looks for this node where
        it was before; then the seeds are asked as well. They also know where a leader is that
        became a member while this node was away.
        """
        node = self._node
        leader = node.controller_id()
        if leader == node.id:
            yield lambda: node.on_join(payload)
            return
        if leader is not None and leader in node.peers():
            yield lambda: node.network.call(leader, Call.JOIN, payload, JOIN_ATTEMPT_S)
            return
        patient = leader is None and node.groups.get(CONTROLLER_GROUP) is not None
        if not patient or attempt >= PATIENT_ATTEMPTS:
            for seed in node.config.seeds:
                if seed.id != node.id:
                    yield lambda seed=seed: node.network.call_address(  # type: ignore[misc]
                        seed.host, seed.port, Call.JOIN, payload, JOIN_ATTEMPT_S
                    )
