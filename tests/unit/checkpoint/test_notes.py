"""Signed notes: the published example, our own, and everything that must not pass."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cuo_checkpoint import keys
from cuo_checkpoint.errors import NoteInvalid
from cuo_checkpoint.notes import Checkpoint, PublicKey, SecretKey, SignedNote, verified

# The example in the documentation of Go's sumdb/note, from which the form comes.
NEUMANN = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
NEUMANN_NOTE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotp"
    "RZb6KE6RyyBwJnAM=\n"
).encode()
ORIGIN = "cuo/5b0f2f1e-6a0e-5d0c-9f0e-6d6f6b1c7a51"
HEAD = Checkpoint(ORIGIN, 7, bytes(range(32)))


def kind_of(data: bytes, *trusted: PublicKey, origin: str = ORIGIN) -> str:
    """How a note is refused."""
    with pytest.raises(NoteInvalid) as caught:
        verified(data, origin, trusted)
    return caught.value.kind


def test_the_published_note_verifies() -> None:
    """A key and a note made by another implementation are read and believed."""
    key = PublicKey.parse(NEUMANN)
    note = SignedNote.parse(NEUMANN_NOTE)
    assert note.signers([key], "PeterNeumann") == [key]
    assert note.to_bytes() == NEUMANN_NOTE
    assert str(key) == NEUMANN


def test_the_specifications_checkpoint_is_read() -> None:
    """The example of the checkpoint specification is a head of that size."""
    note = SignedNote.parse(
        b"example.com/behind-the-sofa\n20852163\nCsUYapGGPo4dkMgIAUqom/Xajj7h2fB2MPA3j2jxq2I=\n\n"
        + (
            "— example.com/behind-the-sofa Az3grlgtzPICa5OS8npVmf1Myq/5IZniMp+ZJurmRDeOoRDe4URYN7"
            "u5/Zhcyv2q1gGzGku9nTo+zyWE+xeMcTOAYQ8=\n"
        ).encode()
    )
    head = Checkpoint.parse(note.text)
    assert (head.origin, head.size) == ("example.com/behind-the-sofa", 20852163)
    assert head.text() == note.text


def test_a_head_survives_signing_and_reading() -> None:
    """Each of several keys vouches alone; the same head signs to the same bytes."""
    old, new = keys.generate("old"), keys.generate("new")
    data = HEAD.signed([new, old]).to_bytes()
    assert data == HEAD.signed([new, old]).to_bytes()
    for trusted in ([old.public], [new.public], [keys.generate("x").public, old.public]):
        assert verified(data, ORIGIN, trusted) == HEAD


def test_what_is_wrong_is_said() -> None:
    """A changed text, a stranger's key and another tenant's head are told apart."""
    key, stranger = keys.generate("seal"), keys.generate("seal")
    data = HEAD.signed([key]).to_bytes()
    assert kind_of(data.replace(b"\n7\n", b"\n8\n"), key.public) == "forged"
    assert kind_of(data, stranger.public) == "wrong_key"
    assert kind_of(data) == "wrong_key"
    assert kind_of(data, key.public, origin="cuo/other") == "other_log"
    # A signature for one tenant, pasted under another's head, is by no key of that name.
    other = Checkpoint("cuo/other", 7, HEAD.root)
    pasted = SignedNote(other.text(), SignedNote.parse(data).signatures).to_bytes()
    assert kind_of(pasted, key.public, origin="cuo/other") == "wrong_key"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\n\n",
        b"text only\n",
        NEUMANN_NOTE.replace(b"\n\n", b"\n\n\x07"),
        NEUMANN_NOTE[:-1],
        NEUMANN_NOTE.replace("— ".encode(), b"- "),
        NEUMANN_NOTE.replace(b" x08", b"  x08"),
        NEUMANN_NOTE + "— a b\n".encode(),
        NEUMANN_NOTE + "— a+b AAAAAAAA\n".encode(),
        NEUMANN_NOTE + "— a AAAAAAAA\n".encode() * 64,
        b"a" * 70_000,
    ],
)
def test_malformed_notes_are_refused(data: bytes) -> None:
    """Bytes that are no note raise NoteInvalid and nothing else."""
    with pytest.raises(NoteInvalid) as caught:
        SignedNote.parse(data)
    assert caught.value.kind == "malformed"


@pytest.mark.parametrize(
    "text",
    [
        "o\n1\n",
        "\n1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "o\n01\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "o\n-1\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "o\n١\n" + base64.b64encode(bytes(32)).decode() + "\n",
        "o\n1\n" + base64.b64encode(bytes(31)).decode() + "\n",
        "o\n1\nnot base64!\n",
        "o\n1\n" + base64.b64encode(bytes(32)).decode() + "\nextension\n",
    ],
)
def test_malformed_heads_are_refused(text: str) -> None:
    """A head has exactly one spelling."""
    with pytest.raises(NoteInvalid, match="head"):
        Checkpoint.parse(text)


@given(st.integers(0, 250), st.integers(0, 255))
def test_any_changed_byte_is_noticed(at: int, value: int) -> None:
    """Whatever byte is replaced, the note is refused or says the same thing still."""
    key = SecretKey("seal", bytes(32))
    data = bytearray(HEAD.signed([key]).to_bytes())
    data[at % len(data)] = value
    try:
        head = verified(bytes(data), ORIGIN, [key.public])
    except NoteInvalid:
        return
    assert head == HEAD
