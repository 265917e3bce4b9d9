//! What S3's errors mean: by their code, which stores agree on better than on the status.

use std::error::Error;

use aws_sdk_s3::config::http::HttpResponse;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};

use crate::{Key, StoreError};

/// The longest text of another's that is passed on, in characters.
const MAX_DETAIL: usize = 400;

/// What a call was, for an error's text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) key: &'a Key,
    pub(super) bucket: &'a str,
    /// What the store can't do where it says that it does not know the call.
    pub(super) what: &'static str,
}

/// The error of a whole chain in one line: the outermost of the SDK's says only "dispatch failure".
pub(super) fn chain(e: &dyn Error) -> String {
    let mut said = vec![e.to_string()];
    let mut at = e.source();
    while let Some(e) = at {
        let text = e.to_string();
        // Wrappers often repeat what they wrap.
        if said.last().is_none_or(|last| !last.ends_with(&text)) {
            said.push(text);
        }
        at = e.source();
    }
    short(&said.join(": "))
}

fn short(text: &str) -> String {
    text.chars().take(MAX_DETAIL).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

impl Call<'_> {
    /// What `e` means for this call.
    pub(super) fn failed<E>(&self, e: &SdkError<E, HttpResponse>) -> StoreError
    where
        E: ProvideErrorMetadata + Error + 'static,
    {
        let key = self.key.clone();
        let SdkError::ServiceError(told) = e else {
            let detail = chain(e);
            return match e {
                SdkError::ConstructionFailure(_) => StoreError::Refused { key, detail },
                _ => StoreError::Unavailable { key, detail },
            };
        };
        let status = told.raw().status().as_u16();
        let code = told.err().code().unwrap_or_default();
        let message = told.err().message().unwrap_or_default();
        let detail = match (code, message) {
            // Where the SDK can't read the answer, it says why, and has neither.
            ("", "") => match told.err().source() {
                Some(why) => format!("status {status}: {}", chain(why)),
                None => format!("status {status}"),
            },
            (code, message) => format!("{} ({}, status {status})", short(message), short(code)),
        };
        match kind(code, status) {
            Kind::NotFound => StoreError::NotFound { key },
            Kind::NoBucket => {
                let detail =
                    format!("there is no bucket `{}`; make it, or mend `url`", self.bucket);
                StoreError::Refused { key, detail }
            }
            Kind::Elsewhere => {
                let detail = format!("{detail}; set `region` to the bucket's");
                StoreError::Refused { key, detail }
            }
            Kind::Denied => StoreError::Denied { key, detail },
            Kind::Changed => StoreError::Changed { key },
            Kind::Throttled => StoreError::Throttled { key, detail },
            Kind::Corrupt => StoreError::Corrupt { key, detail },
            Kind::Full => StoreError::Full { key, detail },
            Kind::Unsupported => StoreError::Unsupported(self.what),
            Kind::Unavailable => StoreError::Unavailable { key, detail },
            Kind::Refused => StoreError::Refused { key, detail },
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    NotFound,
    NoBucket,
    Elsewhere,
    Denied,
    Changed,
    Throttled,
    Corrupt,
    Full,
    Unsupported,
    Unavailable,
    Refused,
}

fn kind(code: &str, status: u16) -> Kind {
    match code {
        "NoSuchKey" | "NoSuchUpload" | "NotFound" => return Kind::NotFound,
        "NoSuchBucket" => return Kind::NoBucket,
        "PermanentRedirect"
        | "AuthorizationHeaderMalformed"
        | "IllegalLocationConstraintException" => {
            return Kind::Elsewhere;
        }
        "AccessDenied"
        | "InvalidAccessKeyId"
        | "SignatureDoesNotMatch"
        | "ExpiredToken"
        | "InvalidToken"
        | "TokenRefreshRequired"
        | "RequestTimeTooSkewed" => return Kind::Denied,
        "PreconditionFailed" | "ConditionalRequestConflict" => return Kind::Changed,
        "SlowDown"
        | "SlowDownRead"
        | "SlowDownWrite"
        | "RequestLimitExceeded"
        | "Throttling"
        | "ThrottlingException"
        | "TooManyRequests"
        | "ServiceUnavailable" => {
            return Kind::Throttled;
        }
        "BadDigest" | "XAmzContentSHA256Mismatch" => return Kind::Corrupt,
        "QuotaExceeded" | "XMinioStorageFull" | "XMinioAdminBucketQuotaExceeded" => {
            return Kind::Full;
        }
        "NotImplemented" | "MethodNotAllowed" => return Kind::Unsupported,
        "InternalError" | "RequestTimeout" | "IncompleteBody" | "OperationAborted" => {
            return Kind::Unavailable;
        }
        _ => {}
    }
    match status {
        // An answer of success that holds neither a result nor an error that we know.
        200..=299 => Kind::Corrupt,
        301 | 307 => Kind::Elsewhere,
        401 | 403 => Kind::Denied,
        404 => Kind::NotFound,
        408 | 500 | 502 | 504 => Kind::Unavailable,
        412 => Kind::Changed,
        429 | 503 => Kind::Throttled,
        405 | 501 => Kind::Unsupported,
        507 => Kind::Full,
        _ => Kind::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_weighs_more_than_its_status() {
        for (code, status, is) in [
            ("", 404, Kind::NotFound),
            ("NoSuchUpload", 404, Kind::NotFound),
            ("NoSuchBucket", 404, Kind::NoBucket),
            ("ExpiredToken", 400, Kind::Denied),
            ("", 403, Kind::Denied),
            ("ConditionalRequestConflict", 409, Kind::Changed),
            ("", 412, Kind::Changed),
            ("SlowDown", 200, Kind::Throttled),
            ("", 429, Kind::Throttled),
            ("InternalError", 200, Kind::Unavailable),
            ("", 502, Kind::Unavailable),
            ("", 200, Kind::Corrupt),
            ("BadDigest", 400, Kind::Corrupt),
            ("", 507, Kind::Full),
            ("NotImplemented", 501, Kind::Unsupported),
            ("EntityTooSmall", 400, Kind::Refused),
        ] {
            assert_eq!(kind(code, status), is, "{code} {status}");
        }
    }
}
