"use strict";
// Serves each folder of a directory as a bucket, to the user of the variables.
const fs = require("fs");
const S3rver = require("s3rver");
const { DUMMY_ACCOUNT } = require("s3rver/lib/models/account");

const directory = process.argv[2];
DUMMY_ACCOUNT.createKeyPair(process.env.MINIO_ROOT_USER, process.env.MINIO_ROOT_PASSWORD);
new S3rver({
    address: "0.0.0.0",
    port: 9000,
    directory,
    silent: true,
    vhostBuckets: false,
    configureBuckets: fs.readdirSync(directory).map((name) => ({ name, configs: [] })),
}).run();
process.on("SIGTERM", () => process.exit(0));
