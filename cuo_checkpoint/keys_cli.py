"""`cuo-archive keys`: the keys that sign heads are made, rotated, retired and told of."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from cuo_checkpoint.cli_output import deliver, emit_json, remark

__all__ = ["keys"]

_FILE: Final = click.Path(path_type=Path)
_JSON: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def keys() -> None:
    """Make, rotate and retire the keys that sign heads. See docs/evidence.md."""


@keys.command("new")
@click.argument("file", type=_FILE)
@click.option("--name", required=True, help="What to call the key, such as acme-2026.")
@_JSON
def _new(file: Path, name: str, as_json: bool) -> None:
    """Make a key file with one key."""
    from cuo_checkpoint import keys

    key = keys.generate(name)
    keys.write_new(file, keys.KeyRing((key,)))
    if as_json:
        emit_json({"file": str(file), "public": str(key.public)})
    else:
        deliver(str(key.public))
    remark(f"Back {file} up offline, and give the public key above to whoever verifies.")


@keys.command("rotate")
@click.argument("file", type=_FILE)
@click.option("--name", required=True, help="What to call the new key.")
@click.option("--out", type=_FILE, help="Where to put the old key's note about the new one.")
@_JSON
def _rotate(file: Path, name: str, out: Path | None, as_json: bool) -> None:
    """Add a key. All keys in the file sign from now on; retire the old one when all know the new."""
    from cuo_checkpoint import keys
    from cuo_checkpoint.errors import KeyUnwritten

    ring = keys.load(str(file.absolute()))
    new = keys.generate(name)
    note = keys.endorsement(ring.signing[0], new.public)
    # The note first: it can be had only now, and one about a key that never came harms nobody.
    if out is not None:
        try:
            out.write_bytes(note)
        except OSError as error:
            raise KeyUnwritten(f"cannot write {out}: {error.strerror}.") from None
    elif not as_json and not deliver(note.decode(), line=False):
        raise click.UsageError("Nobody takes the note, so no key was added; see --out.")
    keys.write_over(file, ring.with_new(new))
    if as_json:
        told = {"file": str(file), "public": str(new.public)}
        emit_json(told | ({"note": note.decode()} if out is None else {"note_file": str(out)}))
    else:
        deliver(str(new.public))
    remark("Give both to whoever verifies. Then: cuo-archive keys retire FILE OLD-ID")


@keys.command("retire")
@click.argument("file", type=_FILE)
@click.argument("key_id")
@_JSON
def _retire(file: Path, key_id: str, as_json: bool) -> None:
    """Drop a key's secret; what it signed is still believed. For a key replaced or lost."""
    from cuo_checkpoint import keys

    keys.write_over(file, keys.load(str(file.absolute())).retired(key_id))
    if as_json:
        emit_json({"file": str(file), "retired": key_id})
    remark(f"Key {key_id} signs no more. Destroy its backups.")


@keys.command("distrust")
@click.argument("file", type=_FILE)
@click.argument("key_id")
@_JSON
def _distrust(file: Path, key_id: str, as_json: bool) -> None:
    """Drop a key altogether: what it alone signed is believed no more. For a key that was stolen."""
    from cuo_checkpoint import keys

    keys.write_over(file, keys.load(str(file.absolute())).distrusted(key_id))
    if as_json:
        emit_json({"file": str(file), "distrusted": key_id})
    remark(f"Key {key_id} is distrusted here. Tell whoever verifies to remove it too.")


@keys.command("public")
@click.argument("file", type=_FILE)
@click.option("--tenant", metavar="UUID", help="Spell them for tools that know one log at a time.")
@_JSON
def _public(file: Path, tenant: str | None, as_json: bool) -> None:
    """Print the public keys, for whoever verifies."""
    from cuo_checkpoint import ids, keys
    from cuo_checkpoint.leaves import origin_of

    origin = None if tenant is None else origin_of(ids.tenant_of(tenant))
    found = [
        str(key if origin is None else key.named(origin))
        for key in keys.load(str(file.absolute())).believed
    ]
    if as_json:
        emit_json(found)
        return
    for key in found:
        deliver(key)
