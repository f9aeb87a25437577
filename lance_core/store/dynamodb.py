"""The rows of `store.external` in DynamoDB, as pylance writes and reads them.

    base_uri  S   hash key: the dataset's path in its bucket, without the bucket
    version   N   range key
    path      S   full key of the manifest in the bucket, staging or final
    size      N   its size in bytes
    committer S   "lancedb"

Datasets with the same path in two buckets must not share a table.
"""

from __future__ import annotations

# botocore comes with s3fs, which is an optional extra.
# ruff: noqa: PLC0415
import os
from typing import Any, Final

from lance_core.errors import InvalidInputError, OutcomeUnknownError, StoreError, UnsupportedError
from lance_core.store.options import StorageOptions

_clients: dict[tuple[int, StorageOptions], Any] = {}


class DynamoDbTable:
    """Rows of one dataset in a DynamoDB table.

    Args:
        table: The table.
        prefix: The dataset's path in its bucket.
        options: Storage options; `dynamodb_endpoint` names another endpoint than AWS's.
    """

    gives_numbers_once: Final = False

    def __init__(self, table: str, prefix: str, options: StorageOptions) -> None:
        self._table = table
        self._prefix = prefix
        self._options = options

    def get(self, version: int) -> str | None:
        """Return the key of the version's manifest."""
        item = self._call("get_item", Key=self._row_key(version), ConsistentRead=True).get("Item")
        return None if item is None else self._strip_prefix(item["path"]["S"])

    def latest(self) -> tuple[int, str] | None:
        """Return the highest version and its key."""
        items = self._query(ScanIndexForward=False, Limit=1)["Items"]
        return (int(items[0]["version"]["N"]), self._strip_prefix(items[0]["path"]["S"])) if items else None

    def add(self, version: int, key: str, size: int) -> bool:
        """Insert a row unless there is one; a row with the same key is this writer's own, after a lost response."""
        condition = "attribute_not_exists(base_uri) AND attribute_not_exists(version)"
        return self._put(version, key, size, condition) or self.get(version) == key

    def finalize(self, version: int, key: str, size: int) -> None:
        """Set the key of a row."""
        if not self._put(version, key, size, "attribute_exists(base_uri) AND attribute_exists(version)"):
            raise StoreError(f"DynamoDB table {self._table}: the row of version {version} was deleted")

    def remove(self, version: int) -> None:
        """Delete a row."""
        self._call("delete_item", Key=self._row_key(version))

    def clear(self) -> None:
        """Delete all rows in ascending order of versions, so that after an interruption used numbers stay taken."""
        while items := self._query(ScanIndexForward=True)["Items"]:
            for item in items:
                self.remove(int(item["version"]["N"]))

    def _query(self, **parameters: Any) -> dict[str, Any]:
        return self._call(
            "query",
            KeyConditionExpression="base_uri = :place",
            ExpressionAttributeValues={":place": {"S": self._prefix}},
            ConsistentRead=True,
            **parameters,
        )

    def _put(self, version: int, key: str, size: int, condition: str) -> bool:
        item = {
            **self._row_key(version),
            "path": {"S": f"{self._prefix}/{key}"},
            "size": {"N": str(size)},
            "committer": {"S": "lancedb"},
        }
        return bool(self._call("put_item", Item=item, ConditionExpression=condition))

    def _row_key(self, version: int) -> dict[str, Any]:
        return {"base_uri": {"S": self._prefix}, "version": {"N": str(version)}}

    def _strip_prefix(self, path: str) -> str:
        return path.removeprefix(self._prefix + "/")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Make a request; an empty response means that its condition was not fulfilled."""
        client = self._client()  # raises if botocore is not installed
        import botocore.exceptions as errors

        place = f"DynamoDB table {self._table}"
        try:
            answer: dict[str, Any] = getattr(client, method)(TableName=self._table, **parameters)
        except errors.ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode") or 0)
            if code == "ConditionalCheckFailedException":
                return {}
            kind = OutcomeUnknownError if method == "put_item" and status >= 500 else StoreError
            raise kind(f"{place}: {method} failed with HTTP {status} {code}") from None
        except errors.BotoCoreError as error:
            kind = OutcomeUnknownError if method == "put_item" else StoreError
            raise kind(f"{place}: {method} failed: {type(error).__name__}") from None
        return answer

    def _client(self) -> Any:
        key = (os.getpid(), self._options)
        if key not in _clients:
            _clients[key] = _new_client(self._options.for_s3())
        return _clients[key]


def _new_client(s3_options: dict[str, str]) -> Any:
    try:
        import botocore.session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, NoRegionError
    except ImportError:
        raise UnsupportedError("s3+ddb:// needs s3fs: install lance-dagster[s3]") from None
    endpoint = s3_options.get("dynamodb_endpoint")
    # botocore itself looks for AWS_DEFAULT_REGION only.
    region = s3_options.get("aws_region") or os.environ.get("AWS_REGION") or ("us-east-1" if endpoint else None)
    try:
        return botocore.session.Session(profile=s3_options.get("aws_profile")).create_client(
            "dynamodb",
            region_name=region,
            endpoint_url=endpoint,
            aws_access_key_id=s3_options.get("aws_access_key_id"),
            aws_secret_access_key=s3_options.get("aws_secret_access_key"),
            aws_session_token=s3_options.get("aws_session_token"),
            config=Config(connect_timeout=5, read_timeout=30, retries={"total_max_attempts": 5, "mode": "standard"}),
        )
    except NoRegionError:
        raise InvalidInputError(
            "s3+ddb:// needs to know the region of the DynamoDB table: set the storage option aws_region, or AWS_REGION"
        ) from None
    except (BotoCoreError, ValueError) as error:
        raise InvalidInputError(f"cannot create a DynamoDB client: {type(error).__name__}") from None
