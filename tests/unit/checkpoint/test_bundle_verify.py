"""The stand-alone verifier's own arithmetic, against published vectors and the package's."""

from __future__ import annotations

import ast
import json
import math
import sys
from pathlib import Path

import pytest
import rfc8785
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import example, given
from hypothesis import strategies as st

from cuo_checkpoint import bundle_verify, keys
from cuo_checkpoint.bundle_verify import (
    canonical,
    ed25519_verify,
    included,
    load,
    read_head,
    read_keys,
)
from cuo_checkpoint.canonical import canonical_bytes
from cuo_checkpoint.errors import NoteInvalid
from cuo_checkpoint.merkle import Tree, leaf_hash
from cuo_checkpoint.notes import Checkpoint, verified

# RFC 8032, section 7.1: public key, message, signature.
VECTORS = [
    (
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9"
            "b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f1"
            "1d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984d"
            "c6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
    (
        "ec172b93ad5e563bf4932c70e1245034c35467ef2efd4d64ebf819683467e2bf",
        (
            "ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3fe"
            "ebbd454d4423643ce80e2a9ac94fa54ca49f"
        ),
        (
            "dc2a4459e7369633a52b1bf277839a00201009a3efbf3ecb69bea2186c26b58909351fc9ac90b3ecfdfbc7c66431"
            "e0303dca179c138ac17ad9bef1177331a704"
        ),
    ),
]


@pytest.mark.parametrize(("public", "message", "signature"), VECTORS)
def test_published_signatures(public: str, message: str, signature: str) -> None:
    """The RFC's signatures verify, and not with anything changed."""
    key, text, sign = map(bytes.fromhex, (public, message, signature))
    assert ed25519_verify(key, text, sign)
    assert not ed25519_verify(key, text + b"x", sign)
    assert not ed25519_verify(key, text, sign[:32] + bytes(32))
    assert not ed25519_verify(bytes(32), text, sign)
    assert not ed25519_verify(key, text, sign[:-1])
    # s + L signs the same equation: it must be refused, or one message has two signatures.
    s = int.from_bytes(sign[32:], "little") + bundle_verify.Q
    assert not ed25519_verify(key, text, sign[:32] + s.to_bytes(32, "little"))


@pytest.mark.parametrize("encoding", [2**255 - 19, 2**255 - 1, 2, 1 | 1 << 255])
def test_points_that_are_none_are_refused(encoding: int) -> None:
    """Not reduced, not on the curve, or a zero with a sign."""
    data = encoding.to_bytes(32, "little")
    assert not ed25519_verify(data, b"", bytes(64))
    assert not ed25519_verify(bytes.fromhex(VECTORS[0][0]), b"", data + bytes(32))


@given(st.binary(min_size=32, max_size=32), st.binary(max_size=200), st.integers(0, 511))
def test_signatures_of_another_implementation(seed: bytes, message: bytes, bit: int) -> None:
    """What the installed library signs verifies; with one bit changed it does not."""
    key = Ed25519PrivateKey.from_private_bytes(seed)
    public, sign = key.public_key().public_bytes_raw(), bytearray(key.sign(message))
    assert ed25519_verify(public, message, bytes(sign))
    sign[bit // 8] ^= 1 << bit % 8
    assert not ed25519_verify(public, message, bytes(sign))


NUMBERS = [
    (0.0, "0"),
    (-0.0, "0"),
    (5e-324, "5e-324"),
    (-5e-324, "-5e-324"),
    (1.7976931348623157e308, "1.7976931348623157e+308"),
    (9007199254740992.0, "9007199254740992"),
    (295147905179352830000.0, "295147905179352830000"),
    (9.999999999999997e22, "9.999999999999997e+22"),
    (1e23, "1e+23"),
    (999999999999999900000.0, "999999999999999900000"),
    (1e21, "1e+21"),
    (9.999999999999997e-7, "9.999999999999997e-7"),
    (0.000001, "0.000001"),
    (333333333.3333333, "333333333.3333333"),
    (-0.0000033333333333333333, "-0.0000033333333333333333"),
    (1424953923781206.2, "1424953923781206.2"),
]


@pytest.mark.parametrize(("number", "spelled"), NUMBERS)
def test_numbers_of_the_rfc(number: float, spelled: str) -> None:
    """RFC 8785, appendix B."""
    assert canonical(number).decode() == spelled


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=4), children, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON)
def test_canonical_form(tree: object) -> None:
    """The same bytes as the reference and as the package, after a trip through text too."""
    spelled = canonical(tree)
    assert spelled == rfc8785.dumps(tree) == canonical_bytes(tree)  # type: ignore[arg-type]
    assert canonical(json.loads(spelled, parse_int=float)) == spelled


@given(JSON)
@example(9007199254740992.0)
def test_the_quick_spelling(tree: object) -> None:
    """Whichever encoder a text is given, it spells the tree as the slow one does, or both refuse."""
    for text in (canonical(tree), json.dumps(tree).encode(), json.dumps(tree, indent=1).encode()):
        found, spell = load(text)
        try:
            slow = canonical(found)
        except ValueError:
            with pytest.raises(ValueError, match=r".*"):
                spell(found)
        else:
            assert spell(found) == slow


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, "\ud800", {"\ud800": 1}])
def test_what_has_no_canonical_form(value: object) -> None:
    """It is refused, not spelled somehow."""
    with pytest.raises(ValueError, match=r".*"):
        canonical(value)


@given(st.integers(1, 40), st.data())
def test_inclusion(size: int, data: st.DataObject) -> None:
    """The package's proofs verify, and only for their place."""
    leaves = [leaf_hash(bytes([i])) for i in range(size)]
    tree = Tree(leaves)
    index = data.draw(st.integers(0, size - 1))
    path = tree.inclusion(index)
    assert included(index, size, leaves[index], path, tree.root())
    assert not included(index, size, leaves[index] + b"x", path, tree.root())
    assert not included(size, size, leaves[index], path, tree.root())
    assert not included(index, size, leaves[index], [*path, path[0] if path else b""], tree.root())


def test_heads_and_keys() -> None:
    """Heads signed by the package are read; what is wrong with others is said."""
    key, other = keys.generate("seal"), keys.generate("other")
    head = Checkpoint("cuo/t", 3, bytes(32))
    data = head.signed([other, key]).to_bytes()
    trusted = read_keys(f"# ours\n\n{key.public}\n")
    assert read_head(data, "cuo/t", trusted) == (3, bytes(32))
    assert read_head(data, "cuo/t", None) == (3, bytes(32))
    for bad, origin, believed, why in (
        (data, "cuo/u", trusted, "another log"),
        (data.replace(b"\n3\n", b"\n4\n"), "cuo/t", trusted, "forged"),
        (head.signed([other]).to_bytes(), "cuo/t", trusted, "no key you trust"),
        (b"x", "cuo/t", trusted, "malformed"),
        (b"\x80\xff\n\n\x81", "cuo/t", trusted, "malformed"),
        (data.replace(b"\n3\n", b"\n03\n"), "cuo/t", trusted, "malformed"),
    ):
        with pytest.raises(ValueError, match=why):
            read_head(bad, origin, believed)
    # A key has another id in a head than in its line: whoever compares them needs both.
    stranger, here = other.public.named("cuo/t").id, key.public.named("cuo/t").id
    both = rf"by {stranger}; in this log yours sign: seal {key.public.id} as {here}\)"
    with pytest.raises(ValueError, match=both):
        read_head(head.signed([other]).to_bytes(), "cuo/t", trusted)
    with pytest.raises(NoteInvalid, match=rf"{stranger}; .* seal {key.public.id} as {here}$"):
        verified(head.signed([other]).to_bytes(), "cuo/t", [key.public])
    with pytest.raises(ValueError, match="no key in it"):
        read_keys("# none\n")
    with pytest.raises(ValueError, match="no public key"):
        read_keys(str(key.public).replace("seal", "sael"))
    with pytest.raises(ValueError, match="no public key"):
        read_keys("cuo/t")  # a head's first line, say


def test_a_folder_that_is_not_there_was_not_tampered_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mistyped name is the caller's mistake, 64, and no verdict."""
    assert bundle_verify.main([str(tmp_path / "nothing")]) == 64
    told = capsys.readouterr()
    assert (told.out, "is not a folder" in told.err) == ("", True)


def test_it_imports_the_standard_library_alone() -> None:
    """It is shipped in bundles and run where nothing else is installed."""
    tree = ast.parse(Path(bundle_verify.__file__).read_text(encoding="utf-8"))
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add((node.module or "").split(".")[0])
    assert names - {"__future__"} <= sys.stdlib_module_names
