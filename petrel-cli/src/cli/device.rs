//! Arguments of `petrel xdp-helper` and `petrel dpdk-shim`.

use std::path::PathBuf;

use clap::Args;

/// Hold the rights that `--device xdp` needs, for programs that have none
///
/// Loads the XDP program of an interface, makes AF_XDP sockets for processes, and has the program send each the packets of its own
/// port. It needs root, or CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF, and runs until it is stopped: packets then reach the kernel's sockets.
#[derive(Args, Debug)]
#[command(after_long_help = AFTER_HELP)]
pub(crate) struct XdpHelperArgs {
    /// The interface, as `ip link` names it
    #[arg(long, value_name = "NAME")]
    pub(crate) interface: String,

    /// The socket where programs ask; they find this default by themselves
    #[arg(long, value_name = "PATH", default_value = "/run/petrel/xdp.sock")]
    pub(crate) socket: PathBuf,

    /// A user that may ask, besides root and the helper's own; may be given several times
    ///
    /// A process with an AF_XDP socket can send any frame by the interface. The socket's access control list keeps further users away.
    /// On a file system without access control lists, or with the user 65534 (all users without a number here), wrong users are refused, but can delay
    /// right users.
    #[arg(long, value_name = "UID")]
    pub(crate) allow: Vec<u32>,
}

const AFTER_HELP: &str = "\
Examples:
  petrel xdp-helper --interface eth0 --allow 1001
  petrel serve --listen 10.0.0.7:31850 --credentials db1 --device xdp:eth0!

docs/kernel-bypass.md has the conditions, and what packets past the kernel lose.";

/// Compile the library by which `--device dpdk:ARGUMENTS` calls DPDK
///
/// Most functions of DPDK exist in its headers alone, so the library is compiled against this host's DPDK. It needs a C compiler,
/// pkg-config and DPDK 22.11 or newer with its headers. Compile again after another version of DPDK or of Petrel was installed.
#[derive(Args, Debug)]
#[command(after_long_help = SHIM_AFTER_HELP)]
pub(crate) struct DpdkShimArgs {
    /// The folder of the library [default: that of this program]
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

const SHIM_AFTER_HELP: &str = "\
Examples:
  petrel dpdk-shim
  petrel dpdk-shim --out /usr/local/lib

Programs look for libpetrel_dpdk.so in their own folder, and where the system's loader looks. docs/kernel-bypass.md has more.";
