"""An S3 server as tests use it, whichever server it is."""

import uuid
from dataclasses import dataclass

KEY_ID, SECRET = "test-key-id", "test-secret-canary"
REGION = "us-east-1"


@dataclass(frozen=True)
class S3Endpoint:
    """A running server on a loopback port."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, str]:
        """Options that lance_core and pylance both take."""
        return {
            "aws_endpoint": self.endpoint,
            "allow_http": "true",
            "aws_access_key_id": KEY_ID,
            "aws_secret_access_key": SECRET,
            "aws_region": REGION,
        }

    def new_bucket(self) -> str:
        import boto3

        name = f"bucket-{uuid.uuid4().hex[:12]}"
        secrets = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
        client = boto3.client("s3", endpoint_url=self.endpoint, region_name=REGION, **secrets)
        client.create_bucket(Bucket=name)
        client.close()
        return name
