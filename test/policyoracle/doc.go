// Package policyoracle checks the verdicts of the policy compiler against two others: that of
// kube-network-policies, and the matcher of cyclonus. Random policies and packets go through all
// three. Where the two differ from each other, the text of the API decides; those differences are
// cases of their own.
//
// It is a separate module so that neither becomes a dependency of the agent.
package policyoracle
