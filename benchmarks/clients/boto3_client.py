"""boto3 and its transfer manager move a folder: ``up|down FOLDER PREFIX``; its own settings.

But not its checksum: not every S3 server takes it in the form in which it is sent (aws-chunked).
"""

import os
import sys

import boto3
from boto3.s3.transfer import TransferConfig, create_transfer_manager
from botocore.config import Config


def open_client() -> object:
    return boto3.client(
        "s3",
        endpoint_url=os.environ["BENCH_ENDPOINT"],
        aws_access_key_id=os.environ["BENCH_KEY"],
        aws_secret_access_key=os.environ["BENCH_SECRET"],
        region_name="auto",
        verify=os.environ.get("BENCH_CA"),
        config=Config(
            s3={"addressing_style": "path"}, max_pool_connections=16, request_checksum_calculation="when_required"
        ),
    )


def main() -> None:
    direction, folder, prefix = sys.argv[1:4]
    client, bucket = open_client(), os.environ["BENCH_BUCKET"]
    with create_transfer_manager(client, TransferConfig()) as manager:
        if direction == "up":
            waiting = [
                manager.upload(path, bucket, f"{prefix}/{os.path.relpath(path, folder)}") for path in walk(folder)
            ]
        else:
            waiting = [manager.download(bucket, key, path) for key, path in wanted(client, bucket, folder, prefix)]
        for each in waiting:
            each.result()


def wanted(client: object, bucket: str, folder: str, prefix: str) -> list[tuple[str, str]]:
    found = []
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix + "/"):
        for each in page.get("Contents", ()):
            path = os.path.join(folder, each["Key"][len(prefix) + 1 :])
            os.makedirs(os.path.dirname(path), exist_ok=True)
            found.append((each["Key"], path))
    return found


def walk(folder: str) -> list[str]:
    return sorted(os.path.join(base, name) for base, _, names in os.walk(folder) for name in names)


main()
