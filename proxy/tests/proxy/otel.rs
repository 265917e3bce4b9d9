//! Spans, as a collector gets them.

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::waker::Wake;
use crate::{World, eventually};

const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// A collector: what it got, by service.
struct Collector {
    endpoint: String,
    spans: Arc<Mutex<Vec<(String, Span)>>>,
    _server: JoinSet<()>,
}

impl Collector {
    async fn start() -> Self {
        let spans: Arc<Mutex<Vec<(String, Span)>>> = Arc::default();
        let got = spans.clone();
        let take = async move |headers: HeaderMap, body: Bytes| {
            assert_eq!(headers["content-type"], "application/x-protobuf");
            let request = ExportTraceServiceRequest::decode(body).unwrap();
            for resource in request.resource_spans {
                let attributes = resource.resource.unwrap().attributes;
                let name = attributes.into_iter().find(|a| a.key == "service.name").unwrap();
                let Some(Value::StringValue(name)) = name.value.unwrap().value else {
                    panic!("a service's name is a string")
                };
                let all = resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
                got.lock().unwrap().extend(all.map(|span| (name.clone(), span)));
            }
            StatusCode::OK
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let router = Router::new().route("/v1/traces", post(take));
        let mut server = JoinSet::new();
        server.spawn(async move { axum::serve(listener, router).await.unwrap() });
        Self { endpoint, spans, _server: server }
    }

    /// All spans, once one of this name is there.
    async fn with(&self, name: &str) -> Vec<Span> {
        eventually("the span comes", async || {
            self.spans.lock().unwrap().iter().any(|(_, span)| span.name == name)
        })
        .await;
        let spans = self.spans.lock().unwrap();
        assert!(spans.iter().all(|(service, _)| service == "edge"));
        spans.iter().map(|(_, span)| span.clone()).collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_wake_is_a_tree_of_spans_between_the_clients_and_the_apps() {
    let collector = Collector::start().await;
    let otel = format!("[otel]\nendpoint = '{}'\nservice_name = 'edge'\n", collector.endpoint);
    let world = World::new(&otel).await;
    let head = format!("GET / HTTP/1.1\r\nHost: hello.test\r\ntraceparent: {PARENT}\r\n");
    assert_eq!(world.request(&head).await.status, 200);
    // Not held, and nobody records it.
    assert_eq!(world.get("/").await.status, 200);
    let spans = collector.with("GET").await;
    let of = |name: &str| spans.iter().find(|span| span.name == name).unwrap();
    let (request, wake) = (of("GET"), of("wake"));
    assert_eq!(hex(&request.trace_id), &PARENT[3..35]);
    assert_eq!(hex(&request.parent_span_id), &PARENT[36..52]);
    assert_eq!(wake.parent_span_id, request.span_id);
    assert!(spans.iter().all(|span| span.trace_id == request.trace_id));

    let seen = world.guest.seen();
    let parents: Vec<_> = seen.iter().map(|seen| seen.header("traceparent").unwrap()).collect();
    assert_eq!(&parents[0][36..], format!("{}-01", hex(&request.span_id)));
    assert!(parents[1].ends_with("-00"), "{parents:?}");

    let phases: Vec<_> = spans.iter().filter(|span| span.parent_span_id == wake.span_id).collect();
    let names: Vec<_> = phases.iter().map(|span| &*span.name).collect();
    for name in ["hold", "gate", "app"] {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let mut from = wake.start_time_unix_nano;
    for phase in &phases {
        assert_eq!(phase.start_time_unix_nano, from, "{names:?}");
        from = phase.end_time_unix_nano;
    }
    assert_eq!(from, wake.end_time_unix_nano);
    assert!(request.start_time_unix_nano <= wake.start_time_unix_nano);
    assert!(wake.end_time_unix_nano <= request.end_time_unix_nano);
    assert_eq!(spans.iter().filter(|span| span.name == "GET").count(), 1);
}

#[tokio::test]
async fn a_hold_in_vain_and_a_sampled_request_have_spans_that_outlive_the_process() {
    let collector = Collector::start().await;
    let otel = format!(
        "[otel]\nendpoint = '{}'\nservice_name = 'edge'\nsample = 1.0\n",
        collector.endpoint
    );
    let mut world = World::with(&otel, |plan| {
        plan.policy.hold_deadline_ms = 50;
        plan.wake = Wake::Hangs;
    })
    .await;
    assert_eq!(world.get("/").await.error(), Some("deadline"));
    assert_eq!(world.proxy.ask("POST", "/drain").await.status, 202);
    assert!(world.proxy.ended().await);
    let spans = collector.with("wake").await;
    assert_eq!(spans.len(), 2);
    for span in &spans {
        assert_eq!(span.status.as_ref().unwrap().message, "deadline");
    }
    let took = spans[1].end_time_unix_nano - spans[1].start_time_unix_nano;
    assert!(took >= 50_000_000, "{took}");
}
