//! A fake server, or a man in the middle of a connection to a real one: it says what a test wants it to.

use crate::support::fake::Fake;
use crate::support::tls::Certificates;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ServerConfig, ServerConnection, StreamOwned};

/// The capability of TLS.
const SSL: u32 = 1 << 11;

trait Stream: Read + Write + Send {}
impl<T: Read + Write + Send> Stream for T {}

/// A connection whose client has sent its login.
pub struct Client {
    stream: Box<dyn Stream>,
    number: u8,
}

impl Client {
    /// The next packet of the client.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header)?;
        self.number = header[3].wrapping_add(1);
        let mut packet = vec![0; u32::from_le_bytes([header[0], header[1], header[2], 0]) as usize];
        self.stream.read_exact(&mut packet)?;
        Ok(packet)
    }

    /// Sends a packet.
    pub fn write(&mut self, payload: &[u8]) -> io::Result<()> {
        let packet = packet(&mut self.number, payload);
        self.write_raw(&packet)
    }

    /// Sends these bytes.
    pub fn write_raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)?;
        self.stream.flush()
    }

    /// Asks for the password itself, and returns what the client sends.
    pub fn ask_for_password(&mut self) -> io::Result<Vec<u8>> {
        self.write(&[1, 4])?;
        self.read()
    }

    /// Asks for another method of authentication, and returns what the client sends.
    pub fn switch_to(&mut self, method: &str) -> io::Result<Vec<u8>> {
        self.write(&[&[0xfe], method.as_bytes(), b"\0abcdefghijklmnopqrst\0"].concat())?;
        self.read()
    }

    /// Rejects what the client has sent.
    pub fn reject(&mut self) -> io::Result<()> {
        self.write(b"\xff\x15\x04#28000Access denied")
    }
}

/// A packet with this number, which grows.
pub fn packet(number: &mut u8, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("a short packet").to_le_bytes();
    let header = [length[0], length[1], length[2], *number];
    *number = number.wrapping_add(1);
    [&header[..], payload].concat()
}

/// The greeting of a server of this version.
pub fn greeting(version: &str, method: &str, has_tls: bool) -> Vec<u8> {
    // CONNECT_WITH_DB, PROTOCOL_41, SECURE_CONNECTION, MULTI_STATEMENTS, MULTI_RESULTS, PLUGIN_AUTH
    let capabilities: u32 = 0x000b_f7df & !SSL | if has_tls { SSL } else { 0 };
    let [a, b, c, d] = capabilities.to_le_bytes();
    let fields =
        [b"\0\x01\0\0\0abcdefgh\0", &[a, b, 0x2d, 2, 0, c, d, 0x15][..], &[0; 10], b"ijklmnopqrst\0"];
    [&[10], version.as_bytes(), &fields.concat(), method.as_bytes(), b"\0"].concat()
}

/// Starts a server that greets so, and carries out `script` with each client that has logged in; with TLS, if there are
/// certificates and the client asks for it.
pub fn start(
    greeting: Vec<u8>,
    certificates: Option<&Certificates>,
    script: impl Fn(&mut Client) -> io::Result<()> + Send + Sync + 'static,
) -> Fake {
    let tls = certificates.map(server_config);
    Fake::start(move |_, stream| {
        let _ = serve(stream, &greeting, tls.as_ref(), &script);
    })
}

fn serve(
    stream: TcpStream,
    greeting: &[u8],
    tls: Option<&Arc<ServerConfig>>,
    script: impl Fn(&mut Client) -> io::Result<()>,
) -> io::Result<()> {
    let mut client = Client { stream: Box::new(stream.try_clone()?), number: 0 };
    client.write(greeting)?;
    let login = client.read()?;
    let wanted = login.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
    if let (Some(config), true) = (tls, wanted & SSL != 0) {
        let connection = ServerConnection::new(Arc::clone(config)).map_err(io::Error::other)?;
        client.stream = Box::new(StreamOwned::new(connection, stream));
        client.read()?;
    }
    script(&mut client)
}

fn server_config(certificates: &Certificates) -> Arc<ServerConfig> {
    let chain = vec![CertificateDer::from_pem_file(&certificates.server).expect("a certificate")];
    let key = PrivateKeyDer::from_pem_file(&certificates.server_key).expect("a key");
    let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions of TLS");
    Arc::new(config.with_no_client_auth().with_single_cert(chain, key).expect("a certificate and its key"))
}
