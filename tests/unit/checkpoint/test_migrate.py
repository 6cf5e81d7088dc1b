"""Finding the migrations and their newest revision, against Alembic's own reading."""

from __future__ import annotations

from alembic.config import Config
from alembic.script import ScriptDirectory

from cuo_checkpoint import migrate


def test_head_and_revisions_are_what_alembic_says() -> None:
    """The quick reading of the files must never differ from Alembic's."""
    config = Config()
    config.set_main_option("script_location", str(migrate.migrations_dir()).replace("%", "%%"))
    scripts = ScriptDirectory.from_config(config)
    assert migrate.head() == scripts.get_current_head()
    assert migrate.revisions() == {script.revision for script in scripts.walk_revisions()}
