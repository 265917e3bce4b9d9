//! An S3 server in the process of a test.
