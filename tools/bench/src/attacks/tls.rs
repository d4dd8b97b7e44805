//! A stream inside TLS, for connections that are driven by hand.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use petrel::security::{SecureStream, Security};

/// The opener's end of a connection inside TLS. Bytes that are written before the handshake is over follow with a read.
pub(super) struct Tls {
    socket: TcpStream,
    cipher: Box<dyn SecureStream>,
}

impl Tls {
    pub(super) fn connect(address: SocketAddr, security: &dyn Security) -> io::Result<Self> {
        let cipher = security.connect(address, None).map_err(io::Error::other)?;
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        Ok(Self { socket, cipher })
    }

    fn send_output(&mut self) -> io::Result<()> {
        let mut output = Vec::new();
        self.cipher.take_output(&mut output);
        self.socket.write_all(&output)
    }
}

impl Read for Tls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut bytes = [0; 16 << 10];
        loop {
            let decrypted = self.cipher.read(buffer);
            if decrypted > 0 {
                return Ok(decrypted);
            }
            let count = self.socket.read(&mut bytes)?;
            if count == 0 {
                return Ok(0);
            }
            let taken = self.cipher.receive(&bytes[..count]);
            self.send_output()?;
            taken.map_err(io::Error::other)?;
        }
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.cipher.write(bytes);
        self.send_output()?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
