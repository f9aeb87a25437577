"""Processes of both libraries that append, delete, update and compact one table, undisturbed and killed at random."""

import pytest

from tests.support.mixed_writers import mix


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
def test_on_a_local_disk(tmp_path, kill):
    mix(str(tmp_path / "t"), tmp_path, {}, kill=kill, seconds=20)


@pytest.mark.slow
@pytest.mark.on_ceph
@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
def test_on_s3(s3, tmp_path, kill):
    mix(f"s3://{s3.new_bucket()}/t", tmp_path, s3.storage_options, kill=kill, seconds=40)


@pytest.mark.slow
@pytest.mark.parametrize("kill", [False, True], ids=["undisturbed", "killed"])
@pytest.mark.parametrize("cloud", ["azure", "gcs"])
def test_on_other_clouds(request, cloud, tmp_path, kill):
    server = request.getfixturevalue(cloud)
    mix(f"{server.new_place()}/t", tmp_path, server.storage_options, kill=kill, seconds=40)
