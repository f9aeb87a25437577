"""The command `lance-dagster`."""

from click.testing import CliRunner

from lance_dagster.cli.app import cli


def command(*arguments, fails=0):
    done = CliRunner().invoke(cli, [*map(str, arguments)])
    assert done.exit_code == fails, done.output
    return done.output
