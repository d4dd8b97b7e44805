//! The locals that a lane must keep at each mark.
//!
//! A local is live at a mark if the code behind the mark can read it before that code writes it. The analysis goes through the
//! text backwards, with a set of names per jump target, and repeats loops until their sets stay the same. Each local has a
//! unique name here. In macros, each word that is a local's name is a read.

use std::collections::{BTreeSet, HashMap};

use syn::visit::{self, Visit};
use syn::{Block, Expr, Ident, Lifetime, Local, Macro, Pat, Stmt};

use crate::copies::kept_name;
use crate::marks;
use crate::names::{Names, bound, words};

/// Unique names.
pub(crate) type Set = BTreeSet<String>;

/// The sets of all marks.
pub(crate) struct Live<'a> {
    names: &'a Names,
    /// The live locals behind each mark, by its number.
    marks: Vec<Set>,
    breaks: HashMap<Ident, Set>,
    /// The sets for `break` without a label.
    loops: Vec<Set>,
    /// The kept locals that the present state reads.
    kept: Set,
}

/// Returns the locals that are live at each mark, given the code behind each; the first code is the function's beginning.
pub(crate) fn live(names: &Names, states: &[Block]) -> Vec<Set> {
    let mut live = Live {
        names,
        marks: vec![Set::new(); states.len()],
        breaks: HashMap::new(),
        loops: Vec::new(),
        kept: Set::new(),
    };
    loop {
        let before = live.marks.clone();
        for (number, state) in states.iter().enumerate() {
            live.block(state, Set::new());
            live.marks[number] = std::mem::take(&mut live.kept);
        }
        if live.marks == before {
            return before;
        }
    }
}

/// Returns the locals that code names.
fn mentioned(names: &Names, visit: impl FnOnce(&mut Mentions<'_>)) -> Set {
    let mut mentions = Mentions { names, found: Set::new() };
    visit(&mut mentions);
    mentions.found
}

/// Collects the locals that code reads or writes.
struct Mentions<'a> {
    names: &'a Names,
    found: Set,
}

impl Mentions<'_> {
    fn note(&mut self, name: &Ident) {
        if self.names.is_local(name) {
            self.found.insert(name.to_string());
        }
    }
}

impl<'ast> Visit<'ast> for Mentions<'_> {
    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        path.path.get_ident().into_iter().for_each(|name| self.note(name));
    }
    fn visit_macro(&mut self, mac: &'ast Macro) {
        words(mac.tokens.clone(), &mut |name| self.note(&name));
    }
    fn visit_item(&mut self, _: &'ast syn::Item) {}
}

fn union(mut one: Set, other: &Set) -> Set {
    one.extend(other.iter().cloned());
    one
}

impl Live<'_> {
    fn block(&mut self, block: &Block, after: Set) -> Set {
        block.stmts.iter().rev().fold(after, |after, statement| self.stmt(statement, after))
    }

    fn stmt(&mut self, statement: &Stmt, mut after: Set) -> Set {
        if let Some(name) = kept_name(statement) {
            if after.remove(&name.to_string()) {
                self.kept.insert(name.to_string());
            }
            return after;
        }
        match statement {
            Stmt::Local(local) => self.local(local, after),
            Stmt::Expr(expression, _) => self.expr(expression, after),
            Stmt::Macro(mac) => {
                let read = mentioned(self.names, |mentions| mentions.visit_macro(&mac.mac));
                union(after, &read)
            }
            Stmt::Item(_) => after,
        }
    }

    fn local(&mut self, local: &Local, after: Set) -> Set {
        let mut after = without(after, &local.pat);
        let Some(init) = &local.init else { return after };
        if let Some((_, otherwise)) = &init.diverge {
            let other = self.expr(otherwise, Set::new());
            after.extend(other);
        }
        self.expr(&init.expr, after)
    }

    fn target(&self, label: Option<&Lifetime>) -> Set {
        let target = match label {
            Some(label) => self.breaks.get(&label.ident),
            None => self.loops.last(),
        };
        target.cloned().unwrap_or_default()
    }

    fn expr(&mut self, expression: &Expr, after: Set) -> Set {
        if let Some(mark) = marks::mark(expression) {
            let live = self.marks[mark.number].clone();
            return self.exprs(mark.fetches.into_iter(), live);
        }
        match expression {
            Expr::Block(outer) => {
                if let Some(label) = &outer.label {
                    self.breaks.insert(label.name.ident.clone(), after.clone());
                }
                self.block(&outer.block, after)
            }
            Expr::Unsafe(outer) => self.block(&outer.block, after),
            Expr::If(choice) => {
                let otherwise = match &choice.else_branch {
                    Some((_, otherwise)) => self.expr(otherwise, after.clone()),
                    None => after.clone(),
                };
                let then = self.block(&choice.then_branch, after);
                self.expr(&choice.cond, union(then, &otherwise))
            }
            Expr::Match(choice) => {
                let mut arms = Set::new();
                for arm in &choice.arms {
                    let mut arm_live = self.expr(&arm.body, after.clone());
                    if let Pat::Guard(guard) = &arm.pat {
                        arm_live = self.expr(&guard.guard, arm_live);
                    }
                    arms.extend(without(arm_live, &arm.pat));
                }
                self.expr(&choice.expr, arms)
            }
            Expr::Loop(_) | Expr::While(_) | Expr::ForLoop(_) => self.repeat(expression, after),
            Expr::Break(leave) => {
                let target = self.target(leave.label.as_ref());
                self.exprs(leave.expr.as_deref().into_iter(), target)
            }
            // A state begins outside of loops, and a second turn of a loop reads no more locals than the first. Behind a mark, `continue`
            // has become the `break` of a block.
            Expr::Continue(_) => Set::new(),
            Expr::Let(condition) => self.expr(&condition.expr, without(after, &condition.pat)),
            Expr::Assign(assign) => self.assign(assign, after),
            expression => self.operands(expression, after),
        }
    }

    fn exprs<'e>(&mut self, list: impl DoubleEndedIterator<Item = &'e Expr>, after: Set) -> Set {
        list.rev().fold(after, |after, expression| self.expr(expression, after))
    }

    fn assign(&mut self, assign: &syn::ExprAssign, mut after: Set) -> Set {
        match &*assign.left {
            Expr::Path(path) => {
                if let Some(name) = path.path.get_ident() {
                    after.remove(&name.to_string());
                }
            }
            place => after = self.expr(place, after),
        }
        self.expr(&assign.right, after)
    }

    /// The expressions whose operands are computed in the order of the text.
    fn operands(&mut self, expression: &Expr, after: Set) -> Set {
        match expression {
            Expr::Paren(outer) => self.expr(&outer.expr, after),
            Expr::Group(outer) => self.expr(&outer.expr, after),
            Expr::Field(outer) => self.expr(&outer.base, after),
            Expr::Cast(outer) => self.expr(&outer.expr, after),
            Expr::Unary(outer) => self.expr(&outer.expr, after),
            Expr::Reference(outer) => self.expr(&outer.expr, after),
            Expr::Tuple(outer) => self.exprs(outer.elems.iter(), after),
            Expr::Call(outer) => {
                self.exprs(std::iter::once(&*outer.func).chain(&outer.args), after)
            }
            Expr::MethodCall(outer) => {
                self.exprs(std::iter::once(&*outer.receiver).chain(&outer.args), after)
            }
            Expr::Index(outer) => self.exprs([&*outer.expr, &*outer.index].into_iter(), after),
            Expr::Binary(outer) => {
                let right = self.expr(&outer.right, after.clone());
                // The right side of `&&` and `||` may be left out.
                self.expr(&outer.left, union(right, &after))
            }
            expression => self.other(expression, after),
        }
    }

    /// All other expressions: every named local is read, and every jump may be taken.
    fn other(&mut self, expression: &Expr, after: Set) -> Set {
        struct Jumps<'a, 'b>(&'a Live<'b>, Set);
        impl<'ast> Visit<'ast> for Jumps<'_, '_> {
            fn visit_expr_break(&mut self, leave: &'ast syn::ExprBreak) {
                self.1.extend(self.0.target(leave.label.as_ref()));
                visit::visit_expr_break(self, leave);
            }
            fn visit_expr_closure(&mut self, _: &'ast syn::ExprClosure) {}
        }
        let mut jumps = Jumps(self, after);
        jumps.visit_expr(expression);
        let after = jumps.1;
        union(after, &mentioned(self.names, |mentions| mentions.visit_expr(expression)))
    }

    fn repeat(&mut self, expression: &Expr, after: Set) -> Set {
        let label = match expression {
            Expr::Loop(repeat) => &repeat.label,
            Expr::While(repeat) => &repeat.label,
            Expr::ForLoop(repeat) => &repeat.label,
            _ => &None,
        };
        let mut head = Set::new();
        loop {
            if let Some(label) = label {
                self.breaks.insert(label.name.ident.clone(), after.clone());
            }
            self.loops.push(after.clone());
            let body = match expression {
                Expr::Loop(repeat) => self.block(&repeat.body, head.clone()),
                Expr::While(repeat) => {
                    let body = self.block(&repeat.body, head.clone());
                    self.expr(&repeat.cond, union(body, &after))
                }
                Expr::ForLoop(repeat) => {
                    let body = self.block(&repeat.body, head.clone());
                    union(without(body, &repeat.pat), &after)
                }
                _ => Set::new(),
            };
            self.loops.pop();
            let grown = union(head.clone(), &body);
            if grown == head {
                break;
            }
            head = grown;
        }
        match expression {
            Expr::ForLoop(repeat) => self.expr(&repeat.expr, head),
            _ => head,
        }
    }
}

fn without(mut set: Set, pattern: &Pat) -> Set {
    for name in bound(pattern) {
        set.remove(&name.to_string());
    }
    set
}
