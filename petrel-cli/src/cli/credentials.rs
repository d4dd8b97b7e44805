//! Arguments of `petrel cert` and `petrel key`, and the flag for credentials.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use petrel::endpoint::Device;
use petrel_command::units::parse_duration;

/// Flags of every subcommand that connects or serves.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Security")]
pub(crate) struct CredentialsArgs {
    /// Prove this process's identity, and encrypt: the folder of `petrel cert issue`, or of a key and its known peers
    ///
    /// The folder has cert.pem, key.pem and ca.pem; or key.pem of `petrel key new`, and known_peers of `petrel key pin`.
    /// Changed files are read again.
    #[arg(long, global = true, value_name = "DIR", env = "PETREL_CREDENTIALS")]
    pub(crate) credentials: Option<PathBuf>,

    /// Limit the rights of callers by a file, for commands that serve [default: every client may call everything]
    ///
    /// A line is `WHO MAY`. WHO is `spiffe://DOMAIN/PATH`, `dns:NAME`, `key:sha256:FINGERPRINT`, `uid:NUMBER` (over shared
    /// memory) or `*`. MAY is `all`, `nothing`, or numbers, ranges and names of methods, and `stats`. The first line that fits
    /// counts, and a caller without a line may do nothing. A changed file is read again. docs/security.md has examples.
    #[arg(long, global = true, value_name = "FILE", env = "PETREL_AUTHORIZE")]
    pub(crate) authorize: Option<PathBuf>,

    /// Send and receive datagrams by a network device, and not by the kernel's network stack [default: kernel]
    ///
    /// `xdp` is AF_XDP on the interface with the process's address, `xdp:IF` on another one. It needs root, or `petrel xdp-helper`; where it
    /// cannot be had, datagrams go by the kernel, unless a `!` follows, as in `xdp:eth0!`. `dpdk:ARGUMENTS` is DPDK with the arguments of its
    /// environment, after `petrel dpdk-shim`. `verbs` is the first RDMA card, and `verbs:CARD` another, for peers with a card too.
    /// docs/kernel-bypass.md has more.
    #[arg(long, global = true, value_name = "DEVICE", env = "PETREL_DEVICE")]
    pub(crate) device: Option<Device>,
}

/// Make certificates: an authority of your own, and certificates for hosts and people
#[derive(Args, Debug)]
#[command(after_long_help = CERT_AFTER_HELP)]
pub(crate) struct CertArgs {
    #[command(subcommand)]
    pub(crate) what: CertCommand,
}

const CERT_AFTER_HELP: &str = "\
Examples:
  petrel cert ca --out authority
  petrel cert issue db1.example.com 10.0.0.7 --ca authority --out db1
  petrel cert issue web.example.com --spiffe spiffe://prod/web --ca authority --out web --valid 7d
  petrel cert show db1
  petrel cert revoke db1 sha256:FINGERPRINT-OF-WEB

Keep the authority's folder where you issue certificates, and nowhere else. Copy db1 to the host as a whole:
  petrel serve --listen 10.0.0.7:31850 --credentials db1
  petrel ping db1.example.com --credentials web";

/// The step to take.
#[derive(Debug, Subcommand)]
pub(crate) enum CertCommand {
    /// Make an authority: ca.pem, which all peers need, and ca-key.pem, which is secret
    Ca(CertCaArgs),
    /// Issue a certificate with a new key: a folder for --credentials
    Issue(CertIssueArgs),
    /// Show who a certificate is for, until when, and its fingerprint
    Show(CertShowArgs),
    /// Refuse a certificate from now on, and end the connections of its holder
    ///
    /// Adds a line to the file `revoked` of a folder for --credentials. Processes with the folder follow within two
    /// seconds. Copy the file to further folders.
    Revoke(RevokeArgs),
}

/// Arguments of `petrel cert revoke` and `petrel key revoke`.
#[derive(Args, Debug)]
pub(crate) struct RevokeArgs {
    /// Folder of the process that is to refuse the peer
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// Fingerprint of the peer's certificate or key, as `show` prints it
    #[arg(value_name = "FINGERPRINT")]
    pub(crate) fingerprint: String,
}

/// Arguments of `petrel cert ca`.
#[derive(Args, Debug)]
pub(crate) struct CertCaArgs {
    /// Make an intermediate authority under the authority of a folder; the upper key can then stay off line
    #[arg(long, value_name = "DIR")]
    pub(crate) under: Option<PathBuf>,

    /// Folder to write to
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// Name of the authority, for people
    #[arg(long, value_name = "TEXT", default_value = "Petrel authority")]
    pub(crate) name: String,

    /// How long the authority is valid
    #[arg(long, value_name = "DURATION", default_value = "3650d", value_parser = parse_validity)]
    pub(crate) valid: Duration,
}

/// Arguments of `petrel cert issue`.
#[derive(Args, Debug)]
pub(crate) struct CertIssueArgs {
    /// Names and addresses by which peers reach the holder
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,

    /// SPIFFE ID of the holder
    #[arg(long, value_name = "URI")]
    pub(crate) spiffe: Option<String>,

    /// Folder of the authority
    #[arg(long, value_name = "DIR")]
    pub(crate) ca: PathBuf,

    /// Folder to write to; files of an earlier certificate are replaced
    #[arg(long, value_name = "DIR")]
    pub(crate) out: PathBuf,

    /// How long the certificate is valid
    #[arg(long, value_name = "DURATION", default_value = "90d", value_parser = parse_validity)]
    pub(crate) valid: Duration,
}

/// Arguments of `petrel cert show` and `petrel key show`.
#[derive(Args, Debug)]
pub(crate) struct CertShowArgs {
    /// A folder for --credentials
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Make keys without certificates, and pin those of peers, as ssh does
#[derive(Args, Debug)]
#[command(after_long_help = KEY_AFTER_HELP)]
pub(crate) struct KeyArgs {
    #[command(subcommand)]
    pub(crate) what: KeyCommand,
}

const KEY_AFTER_HELP: &str = "\
Examples, on two hosts:
  petrel key new db1
  petrel key new web
  petrel key pin web 10.0.0.7 sha256:FINGERPRINT-OF-DB1
  petrel key pin db1 web sha256:FINGERPRINT-OF-WEB
  petrel serve --listen 10.0.0.7:31850 --credentials db1
  petrel ping 10.0.0.7 --credentials web";

/// The step to take.
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Make a key in a new folder for --credentials, and print its fingerprint
    New(KeyNewArgs),
    /// Print the fingerprint of the key in a folder
    Show(CertShowArgs),
    /// Trust a peer's key
    Pin(KeyPinArgs),
    /// Refuse a peer's key from now on, and end the peer's connections
    ///
    /// Adds a line to the file `revoked` of a folder for --credentials, whatever names the key is pinned for.
    Revoke(RevokeArgs),
}

/// Arguments of `petrel key new`.
#[derive(Args, Debug)]
pub(crate) struct KeyNewArgs {
    /// Folder to write to
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,
}

/// Arguments of `petrel key pin`.
#[derive(Args, Debug)]
pub(crate) struct KeyPinArgs {
    /// Folder of the own key
    #[arg(value_name = "DIR")]
    pub(crate) folder: PathBuf,

    /// Name or address of the peer
    #[arg(value_name = "NAME")]
    pub(crate) name: String,

    /// Fingerprint that the peer's `petrel key new` has printed
    #[arg(value_name = "FINGERPRINT")]
    pub(crate) fingerprint: String,
}

/// Parses a time in days, or a duration.
fn parse_validity(text: &str) -> Result<Duration, String> {
    match text.strip_suffix('d').map(str::parse::<u64>) {
        Some(Ok(days)) if (1..=36_500).contains(&days) => Ok(Duration::from_secs(days * 86_400)),
        Some(_) => Err(format!("'{text}' is not 1d to 36500d")),
        None => parse_duration(text),
    }
}
