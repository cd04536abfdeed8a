package kube

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"fairlead.io/fairlead/pkg/model"
	"fairlead.io/fairlead/pkg/source"
)

// lackingEvery is the average time between two requests to a cluster that lacks the kind. Five thousand nodes then send fewer than a hundred requests a second in
// all.
const lackingEvery = time.Minute

// accelerations follows the SocketAccelerations of all namespaces. Their selectors decide which of
// them concern pods of this node.
func accelerations(cfg *Config, client rest.Interface) follower {
	return newKind(resource[*source.SocketAcceleration, model.Acceleration]{
		name: "socketaccelerations", client: client,
		object: &source.SocketAcceleration{}, list: func() runtime.Object { return &source.SocketAccelerationList{} },
		selected: func(*metav1.ListOptions) {}, translate: source.Acceleration, lacking: lackingEvery,
		set: cfg.Store.SetAcceleration, drop: cfg.Store.DeleteAcceleration, replace: cfg.Store.ReplaceAccelerations,
	}, cfg.Log)
}
