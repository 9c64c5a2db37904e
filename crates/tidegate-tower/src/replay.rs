//! Replay layer: keeps request bodies while they are sent, so that requests whose bodies cannot be cloned can be retried.

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http::{HeaderMap, Request};
use http_body::{Body, Frame, SizeHint};
use tower_layer::Layer;
use tower_service::Service;

use crate::layered::Layered;

/// What a frame counts for in addition to its bytes, so that many short frames are bounded too.
const PER_FRAME: usize = 64;

/// Makes request bodies replayable, for a [`RetryLayer`](crate::RetryLayer) inside: tonic's, axum's and hyper's bodies
/// cannot be cloned, and a [`ReplayBody`] can.
///
/// A request with a longer body, or with one that failed while it was sent, is tried once: its first answer is passed on.
/// Nothing is kept of requests that are not retried, such as a POST without
/// [`RetryLayer::all_methods`](crate::RetryLayer::all_methods).
///
/// Costs about five allocations for each request, the list of kept frames, and an uncontended lock for each frame. Bytes
/// that the body gives as `Bytes` are not copied.
///
/// # Examples
/// A client of tonic or hyper takes its own type of body, so the innermost step converts it:
/// ```
/// use axum::body::Body;
/// use axum::http::{Method, Request, Response, StatusCode};
/// use http_body_util::BodyExt;
/// use tidegate::retries::Retrier;
/// use tidegate_tower::RetryLayer;
/// use tidegate_tower::body::{ReplayBody, ReplayLayer};
/// use tower::{BoxError, ServiceBuilder, ServiceExt, service_fn};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), BoxError> {
/// let service = service_fn(|request: Request<Body>| async move {
///     let first = !request.headers().contains_key("x-envoy-attempt-count");
///     let body = request.into_body().collect().await?.to_bytes();
///     let status = if first { StatusCode::BAD_GATEWAY } else { StatusCode::OK };
///     Ok::<_, BoxError>(Response::builder().status(status).body(Body::from(body))?)
/// });
/// let client = ServiceBuilder::new()
///     .layer(ReplayLayer::up_to(64 * 1024))
///     .layer(RetryLayer::new(Retrier::default()))
///     .map_request(|request: Request<ReplayBody<Body>>| request.map(Body::new))
///     .service(service);
/// let request = Request::builder().method(Method::PUT).body(Body::from("a page"))?;
/// let answer = client.oneshot(request).await?;
/// assert_eq!(answer.status(), StatusCode::OK, "the second try succeeds");
/// assert_eq!(answer.into_body().collect().await?.to_bytes(), "a page");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct ReplayLayer {
    most: usize,
}

impl ReplayLayer {
    /// Makes a layer that keeps up to `bytes` of each body, its trailers included. Each frame counts 64 bytes more.
    #[must_use]
    pub const fn up_to(bytes: usize) -> Self {
        Self { most: bytes }
    }
}

impl<S> Layer<S> for ReplayLayer {
    type Service = Layered<S, Self>;

    fn layer(&self, inner: S) -> Self::Service {
        Layered { inner, layer: *self }
    }
}

impl<S, B> Service<Request<B>> for Layered<S, ReplayLayer>
where
    S: Service<Request<ReplayBody<B>>>,
    B: Body,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let mut request = request.map(|body| ReplayBody::new(body, self.layer.most));
        let can_replay = request.body().can_replay.clone();
        request.extensions_mut().insert(can_replay);
        self.inner.call(request)
    }
}

/// A request body whose clones begin again from its beginning: made by [`ReplayLayer`].
///
/// While a clone exists, frames are kept as they are read, up to the layer's number of bytes. Of a longer body, and of one
/// that failed, no clone can be sent any more, and [`RetryLayer`](crate::RetryLayer) makes no further try. A clone that is
/// read all the same fails with [`ReplayError`].
///
/// A body that is being read by two holders at once is read once, and each holder gets all frames.
pub struct ReplayBody<B: Body> {
    source: Arc<Mutex<ReadBody<B>>>,
    can_replay: CanReplay,
    /// How many frames this clone has returned.
    returned: usize,
    /// How many bytes of data these had.
    bytes: u64,
}

/// Whether a body can still be sent from its beginning; in the extensions of the request that carries it.
#[derive(Clone, Debug)]
pub(crate) struct CanReplay(Arc<AtomicBool>);

/// The body that is read, and what was kept of it.
struct ReadBody<B> {
    body: Pin<Box<B>>,
    /// The size that the body told before it was read.
    size: SizeHint,
    kept: Vec<KeptFrame>,
    /// How many bytes may still be kept.
    room: usize,
    /// How many frames were read, kept or not.
    read: usize,
    /// Whether there are no more frames.
    ended: bool,
}

/// One frame that was kept.
enum KeptFrame {
    Data(Bytes),
    Trailers(HeaderMap),
}

/// Why a body cannot be sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the body cannot be sent again: it is longer than the bytes that are kept, or its first sending failed"
)]
pub struct ReplayError;

impl CanReplay {
    /// Returns what the body of a request says about itself, if it is a [`ReplayBody`].
    pub(crate) fn find<T>(request: &Request<T>) -> Option<Self> {
        request.extensions().get().cloned()
    }

    /// Reports whether a request may be sent again, as far as its body is concerned.
    pub(crate) fn of<T>(request: &Request<T>) -> bool {
        request.extensions().get().is_none_or(Self::get)
    }

    pub(crate) fn get(&self) -> bool {
        // Relaxed: the body itself is behind a lock; here it only spares a try that would fail.
        self.0.load(Ordering::Relaxed)
    }

    fn give_up(&self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl<B: Body> ReplayBody<B> {
    /// Makes the first holder of a body of which at most `room` bytes are kept.
    fn new(body: B, room: usize) -> Self {
        let (size, ended) = (body.size_hint(), body.is_end_stream());
        let source = ReadBody { body: Box::pin(body), size, kept: Vec::new(), room, read: 0, ended };
        let can_replay = CanReplay(Arc::new(AtomicBool::new(true)));
        Self { source: Arc::new(Mutex::new(source)), can_replay, returned: 0, bytes: 0 }
    }

    /// Calls `with` with the source. The lock stays usable after a body that panicked: the panic went to its reader.
    fn with_source<T>(&self, with: impl FnOnce(&mut ReadBody<B>) -> T) -> T {
        with(&mut self.source.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<B: Body> ReadBody<B> {
    /// Keeps a frame that was read, if it fits and all before it were kept.
    fn keep(&mut self, frame: &KeptFrame) -> bool {
        let costs = PER_FRAME.saturating_add(match frame {
            KeptFrame::Data(data) => data.len(),
            KeptFrame::Trailers(trailers) => {
                trailers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum()
            }
        });
        let fits = self.kept.len() == self.read && costs <= self.room;
        if fits {
            self.room -= costs;
            self.kept.push(frame.shared());
        } else {
            self.kept = Vec::new();
        }
        fits
    }
}

impl KeptFrame {
    fn shared(&self) -> Self {
        match self {
            Self::Data(data) => Self::Data(data.clone()),
            Self::Trailers(trailers) => Self::Trailers(trailers.clone()),
        }
    }

    fn into_frame(self) -> Frame<Bytes> {
        match self {
            Self::Data(data) => Frame::data(data),
            Self::Trailers(trailers) => Frame::trailers(trailers),
        }
    }
}

impl<B> Body for ReplayBody<B>
where
    B: Body<Error: Into<Box<dyn Error + Send + Sync>>>,
{
    type Data = Bytes;
    type Error = Box<dyn Error + Send + Sync>;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let this = &mut *self;
        // With no other holder nobody can ask for the beginning again.
        let alone = Arc::strong_count(&this.source) == 1;
        let can_replay = this.can_replay.clone();
        let mut source = this.source.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = if this.returned < source.read {
            let Some(kept) = source.kept.get(this.returned) else {
                return Poll::Ready(Some(Err(ReplayError.into())));
            };
            kept.shared()
        } else {
            if source.ended {
                return Poll::Ready(None);
            }
            let frame = match ready!(source.body.as_mut().poll_frame(cx)) {
                None => {
                    source.ended = true;
                    return Poll::Ready(None);
                }
                Some(Err(error)) => {
                    source.ended = true;
                    source.kept = Vec::new();
                    can_replay.give_up();
                    // No frame of a body that failed is a good beginning.
                    source.read = usize::MAX;
                    return Poll::Ready(Some(Err(error.into())));
                }
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(mut data) => KeptFrame::Data(data.copy_to_bytes(data.remaining())),
                    // The other kind of frame that there is.
                    Err(frame) => KeptFrame::Trailers(frame.into_trailers().unwrap_or_default()),
                },
            };
            if alone || !source.keep(&frame) {
                source.kept = Vec::new();
                can_replay.give_up();
            }
            source.read += 1;
            source.ended |= source.body.is_end_stream();
            frame
        };
        drop(source);
        this.returned += 1;
        if let KeptFrame::Data(data) = &frame {
            this.bytes += data.len() as u64;
        }
        Poll::Ready(Some(Ok(frame.into_frame())))
    }

    fn is_end_stream(&self) -> bool {
        self.with_source(|source| source.ended && self.returned == source.read)
    }

    fn size_hint(&self) -> SizeHint {
        let size = self.with_source(|source| source.size);
        let mut left = SizeHint::new();
        if let Some(upper) = size.upper() {
            left.set_upper(upper.saturating_sub(self.bytes));
        }
        left.set_lower(size.lower().saturating_sub(self.bytes));
        left
    }
}

/// A clone begins from the beginning.
impl<B: Body> Clone for ReplayBody<B> {
    fn clone(&self) -> Self {
        Self { source: Arc::clone(&self.source), can_replay: self.can_replay.clone(), returned: 0, bytes: 0 }
    }
}

impl<B: Body> fmt::Debug for ReplayBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplayBody")
            .field("returned", &self.returned)
            .field("can_replay", &self.can_replay.get())
            .finish_non_exhaustive()
    }
}
