//! Whether code uses a local that stands before it.

use syn::visit::{self, Visit};
use syn::{Arm, Block, Expr, Ident, Macro, Pat, Stmt};

use crate::names::{bound, words};

/// Returns whether statements use a local that is declared before them.
pub(crate) fn is_used(name: &Ident, stmts: &[Stmt]) -> bool {
    let mut uses = Uses { name, found: false };
    uses.stmts(stmts);
    uses.found
}

/// Searches for a use of a local, where no other copy of its declaration holds.
struct Uses<'a> {
    name: &'a Ident,
    found: bool,
}

impl Uses<'_> {
    fn is_bound_by(&self, pattern: &Pat) -> bool {
        bound(pattern).contains(self.name)
    }

    fn is_bound_in(&self, condition: &Expr) -> bool {
        match condition {
            Expr::Let(condition) => self.is_bound_by(&condition.pat),
            Expr::Binary(both) => self.is_bound_in(&both.left) || self.is_bound_in(&both.right),
            _ => false,
        }
    }

    fn stmts(&mut self, stmts: &[Stmt]) {
        for statement in stmts {
            self.visit_stmt(statement);
            if let Stmt::Local(local) = statement
                && self.is_bound_by(&local.pat)
            {
                return;
            }
        }
    }
}

impl<'ast> Visit<'ast> for Uses<'_> {
    fn visit_block(&mut self, block: &'ast Block) {
        self.stmts(&block.stmts);
    }
    fn visit_arm(&mut self, arm: &'ast Arm) {
        if !self.is_bound_by(&arm.pat) {
            visit::visit_arm(self, arm);
        }
    }
    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::If(choice) if self.is_bound_in(&choice.cond) => {
                if let Some((_, otherwise)) = &choice.else_branch {
                    self.visit_expr(otherwise);
                }
            }
            Expr::While(repeat) if self.is_bound_in(&repeat.cond) => {}
            Expr::ForLoop(walk) if self.is_bound_by(&walk.pat) => self.visit_expr(&walk.expr),
            Expr::Path(path) => self.found |= path.path.is_ident(self.name),
            expression => visit::visit_expr(self, expression),
        }
    }
    fn visit_macro(&mut self, mac: &'ast Macro) {
        words(mac.tokens.clone(), &mut |name| self.found |= name == *self.name);
    }
}
