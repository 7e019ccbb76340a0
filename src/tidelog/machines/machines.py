"""All machines of one partition as one: what a replica feeds, snapshots and restores.

The snapshot is an envelope around a map from machine name to state:

    "TLMS"  version  CRC32C of the rest  |  offset, count, then name and state of each, by name

Rules:
- Every machine stands at the same offset, `applied`.
- Equal histories give equal bytes, whoever takes the snapshot (invariant: a snapshot at X equals
  the fold of the uncompacted history up to X).
- A snapshot that is refused changes nothing, however late the fault is found.
- The translation follows the log and not the commit, so it is told of appends and truncations as
  they happen; in the snapshot it appears as of `applied`.
- A checkpoint is a snapshot together with the whole map of the translation: all that this replica
  needs to go on from `applied` after a restart. It never leaves the replica.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final

from crc32c import crc32c

from tidelog.machines.encoding import MAX_OFFSET, CorruptSnapshot, Reader, Writer
from tidelog.machines.machine import NO_OBJECTION, CannotApply, Machine
from tidelog.machines.translation import Translation
from tidelog.records import NO_OFFSET, Batch, Offset

MAX_MACHINES: Final = 64
_TRANSLATION: Final = "translation"
_MAGIC: Final = b"TLMS"
_VERSION: Final = 1
_ENVELOPE: Final = Struct(">4sHI")
_MAP_SIZE: Final = Struct(">I")  # begins a checkpoint: bytes of the map, which comes first


class Machines:
    def __init__(self, machines: Sequence[Machine], translation: Translation) -> None:
        names = [machine.name for machine in machines]
        if len({*names, _TRANSLATION}) != len(names) + 1:
            raise ValueError(f"names of machines must differ, also from translation: {names}")
        if len(names) >= MAX_MACHINES:
            raise ValueError(f"{len(names)} machines in one partition, {MAX_MACHINES} is too many")
        self.machines = tuple(machines)
        self.translation = translation
        self.applied = NO_OFFSET  # last offset that every machine has folded in

    # --- What happens to the log ----------------------------------------------------------------

    def appended(self, batch: Batch) -> None:
        """The log now ends with this batch, committed or not; ghosts may come and need not."""
        self.translation.append(batch)

    def truncated(self, first_removed: Offset) -> None:
        """The end of the log, from this offset on, is gone.

        It was not applied from there; but a snapshot may have carried the machines further.
        """
        self.translation.truncate(first_removed)

    def prefix_truncated(self, first_kept: Offset) -> None:
        """The log now begins here."""
        self.translation.truncate_prefix(first_kept)

    def log_reset(self, start: Offset) -> None:
        """The log was emptied and begins anew at `start`; a restore at `start - 1` goes with it."""
        self.translation.reset(start)

    # --- The fold -------------------------------------------------------------------------------

    def apply(self, batches: Sequence[Batch]) -> None:
        """Fold in the next committed batches. Offsets that are left out are gaps.

        Raises `CannotApply` with all folded in that comes before what cannot be.
        """
        for batch in batches:
            if batch.is_ghost or batch.base_offset <= self.applied:
                raise ValueError(f"{batch} cannot be applied after offset {self.applied}")
            for machine in self.machines:
                machine.apply(batch)
            self.applied = batch.last_offset

    def collectible(self) -> Offset:
        """Last offset that compaction may touch as far as the machines are concerned."""
        return min((machine.collectible() for machine in self.machines), default=NO_OBJECTION)

    def reset(self) -> None:
        """Every machine in its initial state. The log stays, and so does the translation."""
        for machine in self.machines:
            machine.restore(b"")
        self.applied = NO_OFFSET

    def hand_on(self, machine: Machine) -> None:
        """Let another object that has the same state go on in the place of its namesake."""
        self.machines = tuple(
            machine if each.name == machine.name else each for each in self.machines
        )

    # --- Snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """The state of all machines at `applied`."""
        states = {machine.name: machine.snapshot() for machine in self.machines}
        states[_TRANSLATION] = self.translation.snapshot(self.applied)
        writer = Writer(_VERSION)
        writer.number(self.applied + 1)
        writer.number(len(states))
        for name in sorted(states):
            writer.blob(name.encode())
            writer.blob(states[name])
        body = writer.finish()
        return _ENVELOPE.pack(_MAGIC, _VERSION, crc32c(body)) + body

    def restore(self, state: bytes, offset: Offset) -> None:
        """Become the machines of a snapshot taken at `offset`.

        Raises `CorruptSnapshot`, and is unchanged, for bytes that are not that, and `CannotApply`
        for the state of another release.
        """
        states = self._open(state, offset)
        before: list[tuple[Machine, bytes]] = []
        try:
            for machine in self.machines:
                before.append((machine, machine.snapshot()))
                machine.restore(states[machine.name])
            self.translation.restore(states[_TRANSLATION], offset)
        except (CorruptSnapshot, CannotApply):
            for machine, former in before:
                machine.restore(former)
            raise
        self.applied = offset

    # --- Checkpoints ----------------------------------------------------------------------------

    def checkpoint(self) -> bytes:
        """The state of all machines at `applied`, for `resume`; the log's own places included."""
        places = self.translation.save(self.applied)
        return _MAP_SIZE.pack(len(places)) + places + self.snapshot()

    def resume(self, state: bytes, offset: Offset, start: Offset) -> None:
        """Become the machines of a checkpoint at `offset` of a log that begins at `start` by now.

        What the log holds past `offset` is still to be told with `appended`. Raises
        `CorruptSnapshot`, and is unchanged, for bytes that are no such checkpoint, and
        `CannotApply` for the state of another release.
        """
        if len(state) < _MAP_SIZE.size:
            raise CorruptSnapshot(f"{len(state)} bytes are too few for a checkpoint")
        end = _MAP_SIZE.size + _MAP_SIZE.unpack_from(state)[0]
        translation = Translation.load(state[_MAP_SIZE.size : end])
        if translation.end != offset or not translation.start <= start <= offset + 1:
            raise CorruptSnapshot(
                f"the checkpoint has the places of {translation}, and should have those of a log"
                f" that begins at {start}, up to {offset}"
            )
        translation.truncate_prefix(start)
        before, self.translation = self.translation, translation
        try:
            self.restore(state[end:], offset)
        except (CorruptSnapshot, CannotApply):
            self.translation = before
            raise

    def _open(self, state: bytes, offset: Offset) -> dict[str, bytes]:
        """Check the envelope and whose states are in it."""
        if len(state) < _ENVELOPE.size:
            raise CorruptSnapshot(f"{len(state)} bytes are too few for a snapshot of machines")
        magic, version, crc = _ENVELOPE.unpack_from(state)
        body = memoryview(state)[_ENVELOPE.size :]
        if magic != _MAGIC:
            raise CorruptSnapshot("these bytes are no snapshot of machines")
        if version != _VERSION:
            raise CorruptSnapshot(
                f"the snapshot has version {version} and this node reads version {_VERSION}:"
                " run the same release on all nodes before snapshots move between them"
            )
        if crc32c(body) != crc:
            raise CorruptSnapshot("the snapshot is damaged: its checksum is wrong; fetch it again")
        reader = Reader(body, "the machines", _VERSION)
        taken_at = reader.number(MAX_OFFSET) - 1
        if taken_at != offset:
            raise CorruptSnapshot(f"the snapshot was taken at offset {taken_at}, not at {offset}")
        states: dict[str, bytes] = {}
        for _ in range(reader.number(MAX_MACHINES)):
            name = reader.blob().decode(errors="replace")
            if states and name <= max(states):
                raise reader.corrupt(f"{name} is not in its place in the order of names")
            states[name] = reader.blob()
        reader.finish()
        here = {_TRANSLATION, *(machine.name for machine in self.machines)}
        if unknown := sorted(states.keys() - here):
            raise CorruptSnapshot(
                f"the snapshot has state for {', '.join(unknown)}, which this partition does not"
                " carry here: run the same release on all nodes"
            )
        if missing := sorted(here - states.keys()):
            raise CorruptSnapshot(
                f"the snapshot has no state for {', '.join(missing)}: it was taken before this"
                " partition carried that; take a new one"
            )
        return states

    def check_invariants(self) -> None:
        self.translation.check_invariants()
        assert self.applied >= NO_OFFSET, self

    def __str__(self) -> str:
        names = " ".join(machine.name for machine in self.machines)
        return f"applied={self.applied} machines=({names}) translation={self.translation}"
