import errno
from collections.abc import Callable

import pytest

from tests.fakes.checkpoints import Files, readers, seal_over, shard, small_checkpoint, tensor_file
from trainmaster.checkpoint import foreign
from trainmaster.checkpoint.manifest import BLOCK_BYTES, MANIFEST_NAME, encode, sha256
from trainmaster.checkpoint.verification import Report, verify
from trainmaster.errors import UnavailableError

RANK_0, RANK_1, STATE = "rank-00000.safetensors", "rank-00001.safetensors", "state.json"


def check(files: Files, *, folder: str | None = "g1-step20", sha: str | None = None) -> Report:
    return verify(**readers(files), folder=folder, manifest_sha256=sha)  # type: ignore[arg-type]


def only_finding(report: Report) -> tuple[str, str | None, int | None]:
    [finding] = report.findings
    assert finding.message
    return finding.kind, finding.file, finding.block


def test_a_whole_checkpoint_has_no_findings() -> None:
    files = small_checkpoint()
    report = check(files, sha=sha256(files[MANIFEST_NAME]))
    assert report.ok
    assert report.sound
    assert (report.run, report.generation, report.step) == ("r1", 1, 20)
    assert report.files == 3
    assert report.bytes == sum(len(d) for name, d in files.items() if name != MANIFEST_NAME)
    assert report.model_dump(mode="json")["ok"] is True


@pytest.mark.parametrize("name", [RANK_0, RANK_1, STATE])
def test_a_flipped_bit_is_found_in_its_file_and_block(name: str) -> None:
    files = small_checkpoint()
    good = files[name]
    files[name] = good[:-1] + bytes([good[-1] ^ 1])
    report = check(files)
    assert only_finding(report) == ("block_digest", name, 0)
    [finding] = report.findings
    assert (finding.expected, finding.seen) == (sha256(good), sha256(files[name]))
    assert not report.sound


def test_a_truncated_file_is_told_by_its_sizes() -> None:
    files = small_checkpoint()
    files[RANK_0] = files[RANK_0][:-3]
    report = check(files)
    assert only_finding(report) == ("size", RANK_0, None)
    size = len(files[RANK_0])
    assert (report.findings[0].expected, report.findings[0].seen) == (
        f"{size + 3} bytes",
        f"{size} bytes",
    )


def test_a_missing_file_is_named() -> None:
    files = small_checkpoint()
    del files[RANK_1]
    assert only_finding(check(files)) == ("missing_file", RANK_1, None)


def test_swapped_files_are_both_named() -> None:
    files = small_checkpoint()
    files[RANK_0], files[RANK_1] = files[RANK_1], files[RANK_0]
    assert {finding.file for finding in check(files).findings} == {RANK_0, RANK_1}


def test_an_extra_file_is_told_and_leaves_the_checkpoint_sound() -> None:
    report = check({**small_checkpoint(), "notes.txt": b"hello"})
    assert only_finding(report) == ("extra_file", "notes.txt", None)
    assert not report.ok
    assert report.sound


def test_hidden_files_of_the_system_are_passed_over() -> None:
    assert check({**small_checkpoint(), ".nfs0001": b"", ".DS_Store": b""}).ok


def test_all_that_is_wrong_is_found_at_once() -> None:
    files = small_checkpoint()
    del files[RANK_1]
    files[RANK_0] += b"x"
    files[STATE] = files[STATE].replace(b"2", b"3")
    found = {(finding.kind, finding.file) for finding in check(files).findings}
    assert found == {("missing_file", RANK_1), ("size", RANK_0), ("block_digest", STATE)}


def test_the_manifest_of_another_step_is_told_by_the_folder() -> None:
    files = small_checkpoint()
    files[MANIFEST_NAME] = small_checkpoint(step=40)[MANIFEST_NAME]
    assert only_finding(check(files)) == ("manifest", MANIFEST_NAME, None)


def test_a_sealed_manifest_that_is_not_the_one_committed_is_told_by_its_digest() -> None:
    files = small_checkpoint()
    report = check(small_checkpoint(fill=7), sha=sha256(files[MANIFEST_NAME]))
    assert only_finding(report) == ("manifest", MANIFEST_NAME, None)
    assert report.findings[0].expected == sha256(files[MANIFEST_NAME])


def test_without_a_manifest_there_is_no_checkpoint() -> None:
    files = small_checkpoint()
    del files[MANIFEST_NAME]
    assert only_finding(check(files)) == ("missing_file", MANIFEST_NAME, None)
    assert only_finding(check({})) == ("missing_file", MANIFEST_NAME, None)


def test_a_wrong_digest_of_a_whole_file_is_found_although_its_blocks_are_right() -> None:
    files = small_checkpoint()
    del files[MANIFEST_NAME]
    manifest = seal_over(files, {})
    entry = manifest.files[STATE].model_copy(update={"sha256": sha256(b"other")})
    sealed = seal_over(files, {}, files={**manifest.files, STATE: entry})
    report = check({**files, MANIFEST_NAME: encode(sealed)})
    assert ("file_digest", STATE) in {(f.kind, f.file) for f in report.findings}


def test_the_block_of_a_long_file_is_named_by_its_number() -> None:
    data = bytes(2 * BLOCK_BYTES + 5)
    files = {RANK_0: tensor_file({"model/a": ("U8", (len(data),), data)}), STATE: b'{"step": 20}'}
    manifest = seal_over(files, {"model/a": [shard(RANK_0, "model/a", [len(data)])]})
    files[MANIFEST_NAME] = encode(manifest)
    assert check(files).ok
    damaged = bytearray(files[RANK_0])
    damaged[BLOCK_BYTES + 17] ^= 1
    damaged[2 * BLOCK_BYTES] ^= 1
    report = check({**files, RANK_0: bytes(damaged)})
    assert [(f.file, f.block) for f in report.findings] == [(RANK_0, 1), (RANK_0, 2)]


@pytest.mark.parametrize(
    "header",
    [
        (2**63).to_bytes(8, "little") + b"{}",
        (10**9).to_bytes(8, "little") + b"{}",
        b"\x02\0\0\0\0\0\0\0[]",
        b"short",
        b"",
    ],
)
def test_a_file_with_right_digests_and_a_hostile_header_is_told(header: bytes) -> None:
    files = {RANK_0: header, STATE: b'{"step": 20}'}
    manifest = seal_over(files, {"model/a": [shard(RANK_0, "model/a", [1])]})
    assert only_finding(check({**files, MANIFEST_NAME: encode(manifest)})) == (
        "content",
        RANK_0,
        None,
    )


def test_a_header_that_says_otherwise_than_the_manifest_is_told() -> None:
    files = {RANK_0: tensor_file({"model/a": ("U8", (6,), bytes(6))}), STATE: b'{"step": 20}'}
    manifest = seal_over(files, {"model/a": [shard(RANK_0, "model/a", [2, 3])]})
    [finding] = check({**files, MANIFEST_NAME: encode(manifest)}).findings
    assert (finding.kind, finding.expected, finding.seen) == ("content", "U8 [2, 3]", "U8 [6]")


@pytest.mark.parametrize("state", [b"[]", b"{", b"\xff\xfe", b"1e999" + b"0" * 9, b'{"a":1e999}'])
def test_a_state_that_is_no_json_object_is_told(state: bytes) -> None:
    files = {STATE: state}
    report = check({**files, MANIFEST_NAME: encode(seal_over(files, {}))})
    assert only_finding(report) == ("content", STATE, None)


def failing_read(error: OSError) -> Callable[[str, int, int], bytes]:
    files = small_checkpoint()
    good = readers(files)["read"]

    def read(name: str, offset: int, length: int) -> bytes:
        if name == RANK_0:
            raise error
        return good(name, offset, length)  # type: ignore[no-any-return]

    return read


def test_a_bad_sector_is_damage() -> None:
    calls = {**readers(small_checkpoint()), "read": failing_read(OSError(errno.EIO, "I/O error"))}
    assert only_finding(verify(**calls)) == ("unreadable", RANK_0, None)  # type: ignore[arg-type]


def test_a_store_that_is_away_is_no_evidence_against_a_checkpoint() -> None:
    calls = {**readers(small_checkpoint()), "read": failing_read(OSError(errno.ESTALE, "stale"))}
    with pytest.raises(UnavailableError, match=RANK_0):
        verify(**calls)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("names", "whose"),
    [
        ([".metadata", "__0_0.distcp", "__1_0.distcp"], "torch.distributed.checkpoint"),
        (
            ["latest_checkpointed_iteration.txt", "iter_0000100/mp_rank_00/model_optim_rng.pt"],
            "Meg",
        ),
        (["mp_rank_00/model_optim_rng.pt"], "Megatron"),
        (["mp_rank_01_002/model_optim_rng.pt"], "Megatron"),
        (["latest", "global_step100/mp_rank_00_model_states.pt"], "DeepSpeed"),
        (["zero_pp_rank_0_mp_rank_00_optim_states.pt"], "DeepSpeed"),
        (["config.json", "model-00001-of-00002.safetensors"], "Hugging Face"),
        (["pytorch_model.bin"], "Hugging Face"),
        (["step100.pt"], "pickled torch"),
    ],
)
def test_a_foreign_checkpoint_is_named_and_not_called_damaged(names: list[str], whose: str) -> None:
    report = check(dict.fromkeys(names, b""), folder="anything")
    assert report.foreign is not None
    assert whose in report.foreign
    assert only_finding(report)[0] == "foreign"
    assert not report.sound


def test_an_ordinary_folder_is_nobodys_checkpoint() -> None:
    assert foreign.recognise(["README.md", "src/main.py"]) is None
