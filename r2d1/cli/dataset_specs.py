"""``r2d1 datasets spec``: keys, signed specs, and whether one may be believed."""

from __future__ import annotations

import json
from pathlib import Path

import click

from r2d1.cli.common import Common, common_options, examples
from r2d1.cli.ending import Result
from r2d1.cli.running import Session, run
from r2d1.tasks import in_thread


@click.group(
    epilog=examples("r2d1 datasets spec keygen --help", "r2d1 datasets spec sign --help"),
)
def spec() -> None:
    """Sign and verify dataset specs.

    A signed spec lets a reader take a dataset from any base without trusting it.
    """


def _parse_added(ctx: click.Context, param: click.Parameter, pairs: tuple[str, ...]) -> dict[str, object]:
    """``k=v`` → a dict; values are JSON if they can be read as such, else text."""
    added: dict[str, object] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not name or not equals:
            raise click.BadParameter(f"{pair!a} is not of the form name=value", ctx, param)
        try:
            added[name] = json.loads(text)
        except ValueError:
            added[name] = text
    return added


@spec.command(epilog=examples("r2d1 datasets spec keygen --out issuer.pem"))
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the private key; one that exists is not replaced.",
)
@common_options
def keygen(common: Common, *, out: Path) -> None:
    """Make a key pair: the private key goes to a file (mode 0600), the public one is printed."""

    async def verb(session: Session) -> Result:
        from r2d1.datasets import generate_key

        public = await in_thread(generate_key, out)
        summary = f"the private key is in {out}: keep it secret"
        return Result([public], {"public_key": public, "file": str(out)}, summary)

    run(common, verb)


@spec.command(
    epilog=examples(
        "r2d1 datasets spec sign data/od --key issuer.pem --out spec.json",
        "r2d1 datasets spec sign data/od --key issuer.pem --out named.json --add name=od-a-v1",
    )
)
@click.argument("directory", metavar="DIR", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option(
    "--key", required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path), help="The private key."
)
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File of the spec.")
@click.option("--add", "added", multiple=True, callback=_parse_added, metavar="K=V", help="A further field to sign.")
@common_options
def sign(common: Common, *, directory: Path, key: Path, out: Path, added: dict[str, object]) -> None:
    """Write the signed spec of the shard set in DIR.

    What its manifest says is signed. The shards are only looked for, by name and size, and not read: run
    `r2d1 datasets verify` first.
    """

    async def verb(session: Session) -> Result:
        from r2d1.datasets import build_spec, load_key, sign_spec, write_spec

        signed = await in_thread(lambda: sign_spec(build_spec(directory, added=added), load_key(key)))
        await in_thread(write_spec, out, signed)
        assert signed.signature is not None
        fields = {"file": str(out), "public_key": signed.signature.key}
        return Result((), fields, f"{out} is signed by the key {signed.signature.key}")

    run(common, verb)


@spec.command(epilog=examples("r2d1 datasets spec verify spec.json --trusted KEY"))
@click.argument("file", metavar="FILE", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--trusted", required=True, multiple=True, metavar="KEY", help="A public key (hex) that may have signed it."
)
@common_options
def verify(common: Common, *, file: Path, trusted: tuple[str, ...]) -> None:
    """Check that a trusted key signed a spec, and print what it describes."""

    async def verb(session: Session) -> Result:
        from r2d1.datasets import verify_spec

        found = await in_thread(lambda: verify_spec(file.read_bytes(), trusted=trusted))
        assert found.signature is not None
        described = found.to_json()
        lines = json.dumps(described, indent=2, sort_keys=True).splitlines()
        return Result(lines, {"spec": described, "public_key": found.signature.key}, f"signed by {found.signature.key}")

    run(common, verb)
