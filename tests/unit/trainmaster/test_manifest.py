import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.checkpoints import seal_over, shard, small_checkpoint
from trainmaster.checkpoint.consistency import contradiction
from trainmaster.checkpoint.manifest import MANIFEST_NAME, Parent, decode, encode, sha256
from trainmaster.errors import IntegrityError

FILE = "rank-00000.safetensors"
BYTES = small_checkpoint()[MANIFEST_NAME]


def test_a_manifest_is_read_back_as_it_was_sealed() -> None:
    manifest = decode(BYTES)
    assert encode(manifest) == BYTES
    assert (manifest.run, manifest.generation, manifest.step) == ("r1", 1, 20)
    assert manifest.total_bytes == sum(
        len(data) for name, data in small_checkpoint().items() if name != MANIFEST_NAME
    )


def test_the_parent_survives() -> None:
    parent = Parent(checkpoint="r1-g1-s20", manifest_sha256=sha256(b"x"))
    manifest = seal_over({"state.json": b"{}"}, {}, parent=parent)
    assert decode(encode(manifest)).parent == parent


def test_an_outsider_can_check_the_digest_by_the_documented_rule() -> None:
    body = json.loads(BYTES)
    digest = body.pop("digest")
    assert digest == sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())


@settings(max_examples=300, deadline=None)
@given(position=st.integers(0, len(BYTES) - 1), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_manifest_is_noticed(position: int, bit: int) -> None:
    damaged = bytearray(BYTES)
    damaged[position] ^= 1 << bit
    with pytest.raises(IntegrityError) as caught:
        decode(bytes(damaged))
    assert caught.value.file == MANIFEST_NAME


@given(length=st.integers(0, len(BYTES) - 1))
def test_a_truncated_manifest_is_noticed(length: int) -> None:
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        decode(BYTES[:length])


@given(data=st.binary(max_size=400))
def test_bytes_that_are_no_manifest_are_refused_by_name(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        decode(data)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "20"),
        ("step", 20.0),
        ("step", True),
        ("step", -1),
        ("step", None),
        ("generation", 0),
        ("files", {"../evil": {}}),
        ("files", []),
        ("surprise", 1),
        ("digest", "md5:0"),
        ("layout", {"replicas": float("nan")}),
    ],
)
def test_a_field_of_another_kind_is_refused(field: str, value: object) -> None:
    body = {**json.loads(BYTES), field: value}
    with pytest.raises(IntegrityError, match="cannot be read as a manifest"):
        decode(json.dumps(body).encode())


def test_an_edit_is_told_with_both_digests() -> None:
    edited = BYTES.replace(b'"step": 20', b'"step": 21')
    assert edited != BYTES
    with pytest.raises(IntegrityError, match="changed after it was written") as caught:
        decode(edited)
    assert caught.value.expected == json.loads(BYTES)["digest"]
    assert caught.value.seen is not None


def test_the_same_content_in_another_form_is_refused() -> None:
    with pytest.raises(IntegrityError, match="canonical"):
        decode(json.dumps(json.loads(BYTES)).encode())


def test_a_newer_format_is_named_as_such() -> None:
    body = {**json.loads(BYTES), "format": 2, "new_field": 1}
    with pytest.raises(IntegrityError, match="format 2 is newer"):
        decode(json.dumps(body).encode())


def test_a_deeply_nested_document_is_refused_and_not_a_crash() -> None:
    with pytest.raises(IntegrityError, match=r"manifest\.json"):
        decode(b'{"layout":' + b"[" * 100_000 + b"]" * 100_000 + b"}")


STATE = {"state.json": b"{}"}
TENSORS = {**STATE, FILE: b"0123456789"}


def test_a_whole_checkpoint_does_not_contradict_itself() -> None:
    assert contradiction(decode(BYTES), "g1-step20") is None
    assert contradiction(decode(BYTES), "a-copy-somewhere") is None


@pytest.mark.parametrize(
    ("manifest", "what"),
    [
        (seal_over({FILE: b""}, {}), "names no state.json"),
        (seal_over({**STATE, MANIFEST_NAME: b""}, {}), "names itself"),
        (seal_over(STATE, {"model/a": []}), "has no shards"),
        (seal_over(STATE, {"model/a": [shard(FILE, "a", [1])]}), "not one of its tensor files"),
        (
            seal_over(STATE, {"model/a": [shard("state.json", "a", [1])]}),
            "not one of its tensor files",
        ),
        (seal_over(TENSORS, {"model/a": [shard(FILE, "a", [2], at=[0, 0])]}), "do not fit"),
        (
            seal_over(TENSORS, {"model/a": [shard(FILE, "a", [2]), shard(FILE, "b", [2], at=[1])]}),
            "overlap",
        ),
        (
            seal_over(TENSORS, {"model/a": [shard(FILE, "a", [2]), shard(FILE, "b", [2], at=[3])]}),
            "cover 4 of the 5",
        ),
        (
            seal_over(
                TENSORS, {"model/a": [shard(FILE, "x", [2])], "model/b": [shard(FILE, "x", [2])]}
            ),
            "shares its bytes",
        ),
    ],
)
def test_a_manifest_that_contradicts_itself_is_told(manifest: object, what: str) -> None:
    assert what in str(contradiction(manifest))  # type: ignore[arg-type]


def test_a_manifest_in_the_folder_of_another_step_is_told() -> None:
    assert "lies in the folder g1-step40" in str(contradiction(decode(BYTES), "g1-step40"))
