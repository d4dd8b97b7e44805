//! A bidirectional stream per call: request and reply end with their half of the stream.

use bytes::Bytes;
use peers_common::{Failure, REPLY_BYTES, SMALL_BYTES, Sink, tasks};
use quinn::{Connection, RecvStream, SendStream};
use tokio::task::spawn_local;

/// Most bytes of one read of the server.
const PIECE_BYTES_MAX: usize = 64 << 10;

pub(crate) async fn serve(connection: Connection) -> Result<(), Failure> {
    // The loop ends with the connection.
    while let Ok((send, receive)) = connection.accept_bi().await {
        spawn_local(answer(send, receive));
    }
    Ok(())
}

async fn answer(mut send: SendStream, mut receive: RecvStream) -> Result<(), Failure> {
    let mut sink = Sink::default();
    let mut small = [0; SMALL_BYTES];
    while let Some(piece) = receive.read_chunk(PIECE_BYTES_MAX, true).await? {
        let at = sink.length();
        if let Some(room) = small.get_mut(at..at + piece.bytes.len()) {
            room.copy_from_slice(&piece.bytes);
        }
        sink.take(&piece.bytes);
    }
    let reply = if sink.length() == SMALL_BYTES { small } else { sink.reply() };
    send.write_all(&reply).await?;
    Ok(send.finish()?)
}

#[derive(Clone)]
pub(crate) struct Caller(pub(crate) Connection);

impl Caller {
    async fn call(&self, request: Bytes) -> Result<Vec<u8>, Failure> {
        let (mut send, mut receive) = self.0.open_bi().await?;
        send.write_chunk(request).await?;
        send.finish()?;
        Ok(receive.read_to_end(REPLY_BYTES).await?)
    }
}

impl tasks::Caller for Caller {
    type Reply = Vec<u8>;

    async fn echo(&self, request: Bytes) -> Result<Vec<u8>, Failure> {
        self.call(request).await
    }

    async fn bulk(&self, request: Bytes) -> Result<Vec<u8>, Failure> {
        self.call(request).await
    }
}
