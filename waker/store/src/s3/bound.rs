//! Nothing that a store answers is kept in memory without bound.

use aws_sdk_s3::config::interceptors::BeforeDeserializationInterceptorContextMut;
use aws_sdk_s3::config::{ConfigBag, Intercept, RuntimeComponents};
use aws_sdk_s3::error::BoxError;
use aws_sdk_s3::primitives::SdkBody;
use http_body_util::Limited;

/// The longest answer that the SDK reads as a whole, in bytes. A page of a thousand of the longest
/// keys comes to 2 MiB.
const MAX_ANSWER: usize = 8 << 20;

/// Cuts answers off that are longer than any of S3's.
#[derive(Debug)]
pub(super) struct Bound {
    /// Whether a successful answer is an object, which streams and so is left alone.
    pub(super) streams: bool,
}

impl Intercept for Bound {
    fn name(&self) -> &'static str {
        "Bound"
    }

    fn modify_before_deserialization(
        &self,
        context: &mut BeforeDeserializationInterceptorContextMut<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let response = context.response_mut();
        if !(self.streams && response.status().is_success()) {
            let body = std::mem::replace(response.body_mut(), SdkBody::empty());
            *response.body_mut() = SdkBody::from_body_1_x(Limited::new(body, MAX_ANSWER));
        }
        Ok(())
    }
}
