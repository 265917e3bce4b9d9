//! `--ssh`: the greeting of an SSH server, and nothing behind it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

/// RFC 4253, section 4.2.
const GREETING: &[u8] = b"SSH-2.0-rouse-test\r\n";

/// How long a peer may stay, and how much it may say.
const PATIENCE: Duration = Duration::from_secs(10);
const MAX_HEARD: u64 = 64 * 1024;

/// Greets whoever connects, until the process ends.
pub(crate) async fn serve(listener: TcpListener, tasks: TaskTracker) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                tasks.spawn(tokio::time::timeout(PATIENCE, greet(stream)));
            }
            // Out of descriptors, most likely.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Closing with words of the peer unread would take the greeting away from it again.
async fn greet(mut stream: TcpStream) -> std::io::Result<()> {
    stream.write_all(GREETING).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(MAX_HEARD), &mut tokio::io::sink()).await?;
    Ok(())
}
