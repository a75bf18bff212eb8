"""boto3's other transfer manager, the AWS CRT (C), moves a folder: ``up|down FOLDER PREFIX``; its defaults."""

import os
import sys

import boto3
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.session import Session
from s3transfer.crt import (
    BotocoreCRTCredentialsWrapper,
    BotocoreCRTRequestSerializer,
    CRTTransferManager,
    create_s3_crt_client,
)

URL = os.environ["BENCH_ENDPOINT"]


def open_manager() -> CRTTransferManager:
    config = Config(s3={"addressing_style": "path"})
    serializer = BotocoreCRTRequestSerializer(
        Session(), {"region_name": "us-east-1", "endpoint_url": URL, "config": config}
    )
    keys = Credentials(os.environ["BENCH_KEY"], os.environ["BENCH_SECRET"])
    client = create_s3_crt_client(
        region="us-east-1",
        crt_credentials_provider=BotocoreCRTCredentialsWrapper(keys).to_crt_credentials_provider(),
        use_ssl=URL.startswith("https:"),
        verify=os.environ.get("BENCH_CA"),
    )
    return CRTTransferManager(client, serializer)


def main() -> None:
    direction, folder, prefix = sys.argv[1:4]
    bucket = os.environ["BENCH_BUCKET"]
    with open_manager() as manager:
        if direction == "up":
            waiting = [
                manager.upload(path, bucket, f"{prefix}/{os.path.relpath(path, folder)}") for path in walk(folder)
            ]
        else:
            waiting = [manager.download(bucket, key, path) for key, path in wanted(bucket, folder, prefix)]
        for each in waiting:
            each.result()


def wanted(bucket: str, folder: str, prefix: str) -> list[tuple[str, str]]:
    client = boto3.client(
        "s3",
        endpoint_url=URL,
        aws_access_key_id=os.environ["BENCH_KEY"],
        aws_secret_access_key=os.environ["BENCH_SECRET"],
        region_name="us-east-1",
        verify=os.environ.get("BENCH_CA"),
        config=Config(s3={"addressing_style": "path"}),
    )
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
