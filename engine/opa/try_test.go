package opa
import ("testing";"fmt";"time";"strings";"example.com/govnode/engine";"github.com/open-policy-agent/opa/v1/ast")
func TestTry(t *testing.T){
 for _,n:=range []int{500,2000,8000} {
 f:=file("h.rego","package agentos\nallow if 1"+strings.Repeat(" + 1", n)+" == 2")
 st:=time.Now(); m,err:=parse(f,ast.RegoV1); d1:=time.Since(st)
 depth,max:=0,0
 v:=ast.NewBeforeAfterVisitor(func(x any) bool { depth++; if depth>max {max=depth}; return false }, func(x any){ depth-- })
 st=time.Now(); v.Walk(m); d2:=time.Since(st)
 st=time.Now(); _,p:=Load([]engine.File{f}); fmt.Println(n,err,d1,max,d2,time.Since(st),p)
 }
}
