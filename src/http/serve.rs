//! Serving HTTP/1.1 to callers who may be slow, many or hostile: every wait and every number is bounded.
//!
//! It knows no routes.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// Connections at once; further ones wait in the listener's backlog. Each costs some tens of kilobytes.
const CONNECTIONS_MAX: usize = 2_048;

/// How long a request's head may take, and how long a connection may lie idle between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// Header fields of one request: clients and proxies send a few dozen.
const HEADERS_MAX_COUNT: usize = 100;

/// Octets of one request's head, and of what is read ahead.
const BUFFER_MAX_OCTETS: usize = 64 * 1024;

/// How long to wait after the system refused a new connection, such as for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves `router` until `until` is over; then takes no new request, and gives those under way `grace`.
pub async fn serve(listener: TcpListener, router: Router, until: impl Future<Output = ()>, grace: Duration) {
    let mut http = hyper::server::conn::http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_headers(HEADERS_MAX_COUNT)
        .max_buf_size(BUFFER_MAX_OCTETS);
    let permits = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    let open = GracefulShutdown::new();
    let mut until = std::pin::pin!(until);
    loop {
        let accepted = async {
            let permit = Arc::clone(&permits).acquire_owned().await.map_err(io::Error::other)?;
            let (stream, _) = listener.accept().await?;
            io::Result::Ok((stream, permit))
        };
        let (stream, permit) = tokio::select! {
            biased;
            () = &mut until => break,
            accepted = accepted => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::warn!(%error, "a connection was not accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        // An answer is one small write: nothing is gained by waiting for more. A failure costs delay, nothing else.
        let _ = stream.set_nodelay(true);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router.clone()));
        let connection = open.watch(connection);
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended early");
            }
            drop(permit);
        });
    }
    drop(listener);
    if tokio::time::timeout(grace, open.shutdown()).await.is_err() {
        tracing::warn!("requests were still under way after {grace:?} and are cut off");
    }
}
