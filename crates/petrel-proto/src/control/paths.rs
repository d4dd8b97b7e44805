//! The further source ports of a link's side (`docs/wire-protocol.md` §14.1).

use crate::limits::PATH_PORTS_MAX;

/// The source ports from which a side sends, besides the port of its offer. The port of the offer is path 0,
/// and entry *i* of this list is path *i* + 1. An empty list stands for an absent record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PathPorts {
    count: u8,
    /// Entries from `count` on are 0.
    ports: [u16; PATH_PORTS_MAX],
}

impl PathPorts {
    /// No further port: the side sends from the port of its offer alone.
    pub const NONE: Self = Self { count: 0, ports: [0; PATH_PORTS_MAX] };

    /// Returns the list, or `None` if it has more than [`PATH_PORTS_MAX`] ports, port 0, or a port twice.
    pub fn new(ports: &[u16]) -> Option<Self> {
        let mut list = Self::NONE;
        for port in ports {
            if *port == 0 || list.contains(*port) {
                return None;
            }
            *list.ports.get_mut(usize::from(list.count))? = *port;
            list.count += 1;
        }
        Some(list)
    }

    /// Returns the ports, in the order of their paths.
    pub fn as_slice(&self) -> &[u16] {
        &self.ports[..usize::from(self.count)]
    }

    /// Returns true if the side sends from the port of its offer alone.
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns true if the list has the port.
    pub fn contains(&self, port: u16) -> bool {
        self.as_slice().contains(&port)
    }
}

impl Default for PathPorts {
    fn default() -> Self {
        Self::NONE
    }
}

impl std::fmt::Debug for PathPorts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new__bounds_of_the_list() {
        let most: Vec<u16> = (1..=PATH_PORTS_MAX as u16).collect();
        assert_eq!(PathPorts::new(&most).map(|list| list.as_slice().to_vec()), Some(most.clone()));
        let more: Vec<u16> = (1..=PATH_PORTS_MAX as u16 + 1).collect();
        assert_eq!(PathPorts::new(&more), None);
        assert_eq!(PathPorts::new(&[]), Some(PathPorts::NONE));
        assert!(PathPorts::NONE.is_empty() && !PathPorts::NONE.contains(0));
    }

    #[test]
    fn new__no_port_0_and_none_twice() {
        assert_eq!(PathPorts::new(&[7, 0]), None);
        assert_eq!(PathPorts::new(&[7, 8, 7]), None);
        let list = PathPorts::new(&[65_535, 1]).unwrap();
        assert!(list.contains(1) && !list.contains(7));
        assert_eq!(format!("{list:?}"), "[65535, 1]");
    }
}
