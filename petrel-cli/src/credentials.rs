//! `petrel cert` and `petrel key`, and the credentials and the policy of this process.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use petrel::security::{Policy, SecurityError};
use petrel_command::Outcome;
use petrel_command::failure::Failure;
use petrel_command::output::Output;
use petrel_tls::{Credentials, Fingerprint, issue};
use serde::Serialize;

use crate::cli::{
    CertArgs, CertCaArgs, CertCommand, CertIssueArgs, CertShowArgs, CredentialsArgs, KeyArgs,
    KeyCommand, KeyNewArgs, KeyPinArgs, RevokeArgs,
};

/// A certificate or key, as `--json` prints it.
#[derive(Serialize)]
struct Record {
    fingerprint: String,
    /// Seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    expires_at: Option<u64>,
}

/// Gives this process a device.
///
/// # Errors
/// The command would do without.
pub(crate) fn use_device(args: &CredentialsArgs, may_use_device: bool) -> Result<(), Failure> {
    match &args.device {
        None => {}
        Some(device) if may_use_device => {
            petrel_command::device::set(device.clone());
        }
        Some(_) => {
            return Err(Failure::because(
                "this command uses no device: leave --device out, and unset PETREL_DEVICE for it",
            ));
        }
    }
    Ok(())
}

/// Gives this process the credentials of a folder.
///
/// # Errors
/// The folder has none, or they cannot be used.
pub(crate) fn install(args: &CredentialsArgs) -> Result<(), Failure> {
    if let Some(folder) = &args.credentials {
        petrel_command::credentials::set(Arc::new(read(folder)?), folder);
    }
    Ok(())
}

/// Sets the policy of a process with named methods.
///
/// # Errors
/// The file cannot be used, or the process serves nothing.
pub(crate) fn authorize(
    args: &CredentialsArgs,
    served: Option<Vec<(String, u16)>>,
) -> Result<(), Failure> {
    let Some(file) = &args.authorize else { return Ok(()) };
    let names = served.ok_or_else(|| {
        Failure::because(
            "this command serves nothing: leave --authorize out, and unset PETREL_AUTHORIZE for it",
        )
    })?;
    let policy = Policy::from_file(file, names).map_err(failed)?;
    petrel_command::credentials::set_authorization(Arc::new(policy));
    Ok(())
}

/// Refuses the flag for a command that would do without the credentials.
///
/// # Errors
/// The flag was given, or the variable is set.
pub(crate) fn refuse(args: &CredentialsArgs) -> Result<(), Failure> {
    match &args.credentials {
        None => Ok(()),
        Some(_) => Err(Failure::because(
            "this command uses no credentials: leave --credentials out, and unset PETREL_CREDENTIALS for it",
        )),
    }
}

/// Reads a folder with certificates, or with a raw key.
fn read(folder: &Path) -> Result<Credentials, Failure> {
    Credentials::from_dir(folder).map_err(failed)
}

fn failed(error: SecurityError) -> Failure {
    Failure::because(error.to_string())
}

pub(crate) fn run_cert(args: &CertArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        CertCommand::Ca(args) => make_authority(args, output)?,
        CertCommand::Issue(args) => issue_certificate(args, output)?,
        CertCommand::Show(args) => show(args, output)?,
        CertCommand::Revoke(args) => revoke(args, output)?,
    }
    Ok(Outcome::Success)
}

pub(crate) fn run_key(args: &KeyArgs, output: Output) -> Result<Outcome, Failure> {
    match &args.what {
        KeyCommand::New(args) => make_key(args, output)?,
        KeyCommand::Show(args) => show_key(args, output)?,
        KeyCommand::Pin(args) => pin(args, output)?,
        KeyCommand::Revoke(args) => revoke(args, output)?,
    }
    Ok(Outcome::Success)
}

fn make_authority(args: &CertCaArgs, output: Output) -> Result<(), Failure> {
    let authority = match &args.under {
        None => issue::Authority::new(&args.name, args.valid),
        Some(above) => authority_in(above)?.under(&args.name, args.valid),
    };
    let authority = authority.map_err(failed)?;
    make_folder(&args.out)?;
    let (certificate, key) = (args.out.join("ca.pem"), args.out.join("ca-key.pem"));
    authority.write(certificate, key).map_err(failed)?;
    let text = authority.certificate().as_bytes();
    let fingerprint = issue::fingerprint_of_certificate(text).map_err(failed)?;
    output.record(&Record { fingerprint: fingerprint.to_string(), expires_at: None })?;
    output.line(format!(
        "The authority is in {}; ca-key.pem is secret. Issue certificates with `petrel cert issue NAME --ca {} --out DIR`.",
        args.out.display(),
        args.out.display()
    ))?;
    Ok(())
}

fn authority_in(folder: &Path) -> Result<issue::Authority, Failure> {
    issue::Authority::read(folder.join("ca.pem"), folder.join("ca-key.pem")).map_err(failed)
}

fn issue_certificate(args: &CertIssueArgs, output: Output) -> Result<(), Failure> {
    let authority = authority_in(&args.ca)?;
    let mut subject = issue::Subject::new(args.valid);
    for name in &args.names {
        subject = subject.name(name);
    }
    if let Some(id) = &args.spiffe {
        subject = subject.spiffe(id);
    }
    authority.issue(&subject).and_then(|issued| issued.write(&args.out)).map_err(failed)?;
    report(&read(&args.out)?, &args.out, output)
}

fn show(args: &CertShowArgs, output: Output) -> Result<(), Failure> {
    report(&read(&args.folder)?, &args.folder, output)
}

fn report(credentials: &Credentials, folder: &Path, output: Output) -> Result<(), Failure> {
    let status = credentials.status();
    let fingerprint = status.fingerprint.to_string();
    output.record(&Record { fingerprint: fingerprint.clone(), expires_at: status.expires_at })?;
    let valid = status.expires_at.map_or(String::new(), |at| format!(", {}", left(at)));
    output.line(format!("{}: {fingerprint}{valid}", folder.display()))?;
    Ok(())
}

/// Returns how long a certificate is still valid.
fn left(expires_at: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let left = expires_at.saturating_sub(now);
    match left / 86_400 {
        0 => format!("valid for {} hours", left / 3_600),
        days => format!("valid for {days} days"),
    }
}

fn make_key(args: &KeyNewArgs, output: Output) -> Result<(), Failure> {
    make_folder(&args.folder)?;
    let fingerprint = issue::new_raw_key(args.folder.join("key.pem")).map_err(failed)?;
    let known_peers = args.folder.join("known_peers");
    if !known_peers.exists() {
        let heading = "# NAME sha256:FINGERPRINT, by `petrel key pin`\n";
        fs::write(&known_peers, heading).map_err(|error| {
            Failure::because(format!("{} cannot be written: {error}", known_peers.display()))
        })?;
    }
    output.record(&Record { fingerprint: fingerprint.to_string(), expires_at: None })?;
    output.line(format!("{}: {fingerprint}", args.folder.display()))?;
    Ok(())
}

fn pin(args: &KeyPinArgs, output: Output) -> Result<(), Failure> {
    let fingerprint: Fingerprint = args.fingerprint.parse().map_err(failed)?;
    let known_peers = args.folder.join("known_peers");
    let former = issue::pin(known_peers, &args.name, fingerprint).map_err(failed)?;
    for key in former {
        output.line(format!("{} had the key {key} before", args.name))?;
    }
    output.record(&Record { fingerprint: fingerprint.to_string(), expires_at: None })?;
    output.line(format!("{} is trusted with {fingerprint}", args.name))?;
    Ok(())
}

fn show_key(args: &CertShowArgs, output: Output) -> Result<(), Failure> {
    let fingerprint = issue::fingerprint_of_raw_key(args.folder.join("key.pem")).map_err(failed)?;
    output.record(&Record { fingerprint: fingerprint.to_string(), expires_at: None })?;
    output.line(format!("{}: {fingerprint}", args.folder.display()))?;
    Ok(())
}

fn revoke(args: &RevokeArgs, output: Output) -> Result<(), Failure> {
    let fingerprint: Fingerprint = args.fingerprint.parse().map_err(failed)?;
    issue::revoke(&args.folder, fingerprint).map_err(failed)?;
    output.record(&Record { fingerprint: fingerprint.to_string(), expires_at: None })?;
    output.line(format!("{} refuses {fingerprint}", args.folder.display()))?;
    Ok(())
}

fn make_folder(folder: &Path) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .map_err(|error| Failure::because(format!("{} cannot be made: {error}", folder.display())))
}
