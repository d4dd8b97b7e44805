//! Calls of batched functions of the same module: the caller's lanes run the callee's body.

use std::collections::HashMap;

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote};
use syn::visit_mut::{self, VisitMut};
use syn::{
    Block, Error, Expr, ExprCall, FnArg, GenericParam, Ident, Local, Pat, Path, PathArguments,
    Result, Signature, Stmt, Type, parse_quote,
};

use crate::marks::note;
use crate::normal::{Returns, label, labelled};

/// A batched function of the module, with its marks as internal calls.
pub(crate) struct Callee {
    pub(crate) signature: Signature,
    pub(crate) body: Block,
}

/// The batched functions of a module.
pub(crate) type Callees = HashMap<Ident, Callee>;

/// Replaces the calls of batched functions in a function's body by their bodies.
///
/// # Errors
/// If a function calls itself, or a call stands where the batch cannot follow it.
pub(crate) fn inline(
    function: &Ident,
    body: &mut Block,
    callees: &Callees,
    krate: &Path,
) -> Result<()> {
    let mut inline = Inline { callees, krate, path: vec![function.clone()], count: 0, error: None };
    inline.visit_block_mut(body);
    inline.error.map_or(Ok(()), Err)
}

/// Returns whether a statement is the body of a called function, behind the `let` of the arguments.
pub(crate) fn is_called(statement: &Stmt) -> bool {
    let Stmt::Local(Local { pat: Pat::Type(typed), .. }) = statement else { return false };
    matches!(&*typed.pat, Pat::Ident(name) if name.ident == "__petrel_called")
}

struct Inline<'a> {
    callees: &'a Callees,
    krate: &'a Path,
    /// The functions whose bodies are around.
    path: Vec<Ident>,
    count: usize,
    error: Option<Error>,
}

impl Inline<'_> {
    fn callee(&self, call: &ExprCall) -> Option<(&Callee, Ident)> {
        let Expr::Path(function) = &*call.func else { return None };
        let segments = &function.path.segments;
        let is_own = segments.len() == 1 || (segments.len() == 2 && segments[0].ident == "self");
        let name = &segments.last()?.ident;
        let callee = self.callees.get(name).filter(|_| is_own && function.qself.is_none())?;
        Some((callee, name.clone()))
    }

    fn inlined(&mut self, call: &ExprCall, callee: &Callee, name: &Ident) -> Result<Expr> {
        if self.path.contains(name) {
            if self.path.first() != Some(name) {
                // The refusal comes when that function itself is expanded.
                return Ok(Expr::Call(call.clone()));
            }
            let message =
                format!("`{name}` calls itself: a batch has no stack per lane; write a loop");
            return Err(Error::new(name.span(), message));
        }
        check_call(call, callee, name)?;
        self.count += 1;
        let label = label(&format!("call_{}", self.count), name.span());
        let generics = Generics::of(&callee.signature);
        generics.check(&callee.body, name)?;
        let result = generics.erased(match &callee.signature.output {
            syn::ReturnType::Default => parse_quote!(()),
            syn::ReturnType::Type(_, result) => (**result).clone(),
        });
        let mut body = callee.body.clone();
        Returns { label: label.clone(), result: result.clone(), krate: self.krate }
            .visit_block_mut(&mut body);
        let body: Block = syn::parse2(hygienic(body.to_token_stream(), name.span()))?;
        let mut block = labelled(&hygienic_label(&label), &body);
        self.path.push(name.clone());
        self.visit_expr_mut(&mut block);
        self.path.pop();
        let (patterns, types) = parameters(&callee.signature, &generics)?;
        let values = call.args.iter();
        Ok(parse_quote! {{
            let (#(#patterns,)*): (#(#types,)*) = (#(#values,)*);
            let __petrel_called: #result = #block;
            __petrel_called
        }})
    }

    fn refuse_calls(&mut self, tokens: TokenStream, place: &str) {
        let mut before: Option<Ident> = None;
        for token in tokens {
            if let TokenTree::Group(group) = &token {
                let called = before
                    .take()
                    .filter(|_| group.delimiter() == proc_macro2::Delimiter::Parenthesis);
                if let Some(name) = called.filter(|name| self.callees.contains_key(name)) {
                    let message = format!(
                        "`{name}` in {place} is the plain function, which waits for memory: call it outside, and bind the result by `let`"
                    );
                    note(&mut self.error, Error::new(name.span(), message));
                }
                self.refuse_calls(group.stream(), place);
            }
            before = match token {
                TokenTree::Ident(name) => Some(name),
                _ => None,
            };
        }
    }
}

impl VisitMut for Inline<'_> {
    fn visit_expr_mut(&mut self, expression: &mut Expr) {
        match expression {
            Expr::Closure(closure) => {
                return self.refuse_calls(closure.body.to_token_stream(), "a closure");
            }
            Expr::Async(block) => {
                return self.refuse_calls(block.block.to_token_stream(), "an async block");
            }
            _ => visit_mut::visit_expr_mut(self, expression),
        }
        let Expr::Call(call) = expression else { return };
        let Some((_, name)) = self.callee(call) else { return };
        let callees = self.callees;
        match self.inlined(call, &callees[&name], &name) {
            Ok(block) => *expression = block,
            Err(error) => note(&mut self.error, error),
        }
    }
    fn visit_macro_mut(&mut self, mac: &mut syn::Macro) {
        self.refuse_calls(mac.tokens.clone(), "the arguments of a macro");
    }
    fn visit_item_mut(&mut self, _: &mut syn::Item) {}
}

fn check_call(call: &ExprCall, callee: &Callee, name: &Ident) -> Result<()> {
    let (given, taken) = (call.args.len(), callee.signature.inputs.len());
    if given != taken {
        let message = format!("`{name}` takes {taken} arguments, and the call gives {given}");
        return Err(Error::new(name.span(), message));
    }
    let Expr::Path(function) = &*call.func else { return Ok(()) };
    match function.path.segments.last().map(|segment| &segment.arguments) {
        None | Some(PathArguments::None) => Ok(()),
        Some(arguments) => Err(Error::new_spanned(
            arguments,
            "the call of a batched function cannot name its generic parameters: leave them to the compiler",
        )),
    }
}

/// Gives a callee's names the hygiene of a macro, so that they do not mean locals of the caller.
fn hygienic(tokens: TokenStream, _call: Span) -> TokenStream {
    let hygienic = |mut token: TokenTree| {
        let span = token.span().resolved_at(Span::mixed_site());
        if let TokenTree::Group(group) = &token {
            token = TokenTree::Group(Group::new(
                group.delimiter(),
                self::hygienic(group.stream(), _call),
            ));
        }
        token.set_span(span);
        token
    };
    tokens.into_iter().map(hygienic).collect()
}

fn hygienic_label(label: &syn::Lifetime) -> syn::Lifetime {
    let mut label = label.clone();
    label.set_span(label.span().resolved_at(Span::mixed_site()));
    label
}

fn parameters(signature: &Signature, generics: &Generics) -> Result<(Vec<Pat>, Vec<Type>)> {
    let mut parameters = (Vec::new(), Vec::new());
    for argument in &signature.inputs {
        if let FnArg::Typed(argument) = argument {
            let pattern = hygienic(argument.pat.to_token_stream(), Span::call_site());
            parameters.0.push(syn::parse::Parser::parse2(Pat::parse_single, pattern)?);
            parameters.1.push(generics.erased((*argument.ty).clone()));
        }
    }
    Ok(parameters)
}

/// The names of a callee's generic parameters, which mean nothing in the caller.
struct Generics(Vec<Ident>);

impl Generics {
    fn of(signature: &Signature) -> Self {
        let name = |parameter: &GenericParam| match parameter {
            GenericParam::Type(parameter) => Some(parameter.ident.clone()),
            GenericParam::Const(parameter) => Some(parameter.ident.clone()),
            GenericParam::Lifetime(_) => None,
        };
        Self(signature.generics.params.iter().filter_map(name).collect())
    }

    fn name_in(&self, tokens: TokenStream) -> Option<Ident> {
        tokens.into_iter().find_map(|token| match token {
            TokenTree::Group(group) => self.name_in(group.stream()),
            TokenTree::Ident(name) => self.0.contains(&name).then_some(name),
            _ => None,
        })
    }

    fn check(&self, body: &Block, callee: &Ident) -> Result<()> {
        match self.name_in(body.to_token_stream()) {
            None => Ok(()),
            Some(name) => {
                let message = format!(
                    "the body of `{callee}` names its generic parameter `{name}`, and another batched function calls it: leave the type to the compiler"
                );
                Err(Error::new(name.span(), message))
            }
        }
    }

    /// Leaves the generic parameters and lifetimes of a type to the compiler.
    fn erased(&self, mut ty: Type) -> Type {
        struct Erase<'a>(&'a Generics);
        impl VisitMut for Erase<'_> {
            fn visit_type_mut(&mut self, ty: &mut Type) {
                let is_generic = match ty {
                    Type::Path(path) => {
                        path.qself.is_some()
                            || path
                                .path
                                .segments
                                .first()
                                .is_some_and(|first| self.0.0.contains(&first.ident))
                    }
                    Type::Array(array) => self.0.name_in(array.len.to_token_stream()).is_some(),
                    Type::ImplTrait(_) => true,
                    _ => false,
                };
                match is_generic {
                    true => *ty = parse_quote!(_),
                    false => visit_mut::visit_type_mut(self, ty),
                }
            }
            fn visit_type_reference_mut(&mut self, reference: &mut syn::TypeReference) {
                reference.lifetime = None;
                visit_mut::visit_type_reference_mut(self, reference);
            }
            fn visit_lifetime_mut(&mut self, lifetime: &mut syn::Lifetime) {
                *lifetime = syn::Lifetime::new("'_", lifetime.span());
            }
        }
        Erase(self).visit_type_mut(&mut ty);
        syn::parse2(quote!(#ty)).unwrap_or(ty)
    }
}
