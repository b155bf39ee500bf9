{{/* The network configuration. A family that is "" is off. */}}
{{- define "flannel.net-conf" -}}
{{- $backend := dict "Type" .Values.flannel.backend -}}
{{- with .Values.flannel -}}
{{- if has .backend (list "vxlan" "udp") -}}
{{- if .backendPort }}{{ $_ := set $backend "Port" (int .backendPort) }}{{ end -}}
{{- end -}}
{{- if has .backend (list "vxlan" "wireguard" "udp") -}}
{{- if .mtu }}{{ $_ := set $backend "MTU" (int .mtu) }}{{ end -}}
{{- end -}}
{{- if eq .backend "vxlan" -}}
{{- if .vni }}{{ $_ := set $backend "VNI" (int .vni) }}{{ end -}}
{{- if eq (toString .GBP) "true" }}{{ $_ := set $backend "GBP" true }}{{ end -}}
{{- if eq (toString .directRouting) "true" }}{{ $_ := set $backend "DirectRouting" true }}{{ end -}}
{{- if .macPrefix }}{{ $_ := set $backend "MacPrefix" .macPrefix }}{{ end -}}
{{- end -}}
{{- if eq .backend "wireguard" -}}
{{- if .backendPort }}{{ $_ := set $backend "ListenPort" (int .backendPort) }}{{ end -}}
{{- if .backendPortv6 }}{{ $_ := set $backend "ListenPortV6" (int .backendPortv6) }}{{ end -}}
{{- if .psk }}{{ $_ := set $backend "PSK" (toString .psk) }}{{ end -}}
{{- /* Values files for Go flannel's chart have to carry the quotes of this one themselves. */ -}}
{{- if .tunnelMode }}{{ $_ := set $backend "Mode" (trimAll "\"" .tunnelMode) }}{{ end -}}
{{- if .keepaliveInterval }}{{ $_ := set $backend "PersistentKeepaliveInterval" (int .keepaliveInterval) }}{{ end -}}
{{- end -}}
{{- range $key, $value := .backendExtra }}{{ $_ := set $backend $key $value }}{{ end -}}
{{- end -}}
{{- $conf := dict "EnableNFTables" (eq (toString .Values.flannel.enableNFTables) "true") "Backend" $backend -}}
{{- if .Values.podCidr }}{{ $_ := set $conf "Network" .Values.podCidr }}{{ else }}{{ $_ := set $conf "EnableIPv4" false }}{{ end -}}
{{- if .Values.podCidrv6 }}{{ $_ := set $conf "IPv6Network" .Values.podCidrv6 }}{{ $_ := set $conf "EnableIPv6" true }}{{ end -}}
{{- if not (or .Values.podCidr .Values.podCidrv6) }}{{ fail "podCidr and podCidrv6 are both empty: pods need at least one network" }}{{ end -}}
{{- toPrettyJson $conf -}}
{{- end -}}

{{/* The CNI configuration, unless a whole one is given. */}}
{{- define "flannel.cni-conf" -}}
{{- if .Values.flannel.cniConf -}}
{{- trim .Values.flannel.cniConf -}}
{{- else -}}
{{- $delegate := dict "hairpinMode" true "isDefaultGateway" true -}}
{{- $flannel := dict "type" "flannel" "delegate" $delegate -}}
{{- $portmap := dict "type" "portmap" "capabilities" (dict "portMappings" true) -}}
{{- toPrettyJson (dict "name" "cbr0" "cniVersion" .Values.flannel.cniVersion "plugins" (list $flannel $portmap)) -}}
{{- end -}}
{{- end -}}

{{- define "flannel.image" -}}
{{- if hasPrefix "ghcr.io/flannel-io/" .image.repository }}{{ fail (printf "the image %s is Go flannel's, which this chart cannot start: leave image.repository and image.tag out of your values" .image.repository) }}{{ end -}}
{{ .image.repository }}:{{ .image.tag | default .version }}
{{- end -}}

{{/* Nothing is pulled of images that no registry has. */}}
{{- define "flannel.pull" -}}
{{ .pullPolicy | default (ternary "Never" "IfNotPresent" (hasPrefix "docker.io/flannel-rs/" .repository)) }}
{{- end -}}

{{/* "true" if flanneld carries packets itself, or may: then it opens /dev/net/tun. Keys and words are read as flanneld reads them. */}}
{{- define "flannel.opens-tun" -}}
{{- $backend := (include "flannel.net-conf" . | fromJson).Backend -}}
{{- $type := lower $backend.Type -}}
{{- $key := get (dict "vxlan" "mode" "wireguard" "implementation") $type -}}
{{- $opens := eq $type "udp" -}}
{{- range $name, $value := $backend -}}
{{- if and (eq (lower $name) $key) (has (lower (toString $value)) (list "userspace" "auto")) }}{{ $opens = true }}{{ end -}}
{{- end -}}
{{- $opens -}}
{{- end -}}

{{/* The rights of a container: no more than it needs, and what the values say instead. */}}
{{- define "flannel.security" -}}
{{- $own := .own | default dict -}}
{{- $privileged := ternary $own.privileged .privileged (hasKey $own "privileged") -}}
{{- $context := dict "readOnlyRootFilesystem" true -}}
{{- if $privileged -}}
{{- $_ := set $context "privileged" true -}}
{{- else -}}
{{- $_ := set $context "privileged" false -}}
{{- $_ := set $context "allowPrivilegeEscalation" false -}}
{{- $_ := set $context "capabilities" (dict "drop" (list "ALL") "add" .capabilities) -}}
{{- end -}}
{{- toYaml (mergeOverwrite $context $own) -}}
{{- end -}}

{{/* The labels and annotations of an object: those of all objects (the values' global.*), its own of the values, and .own, which the chart needs. */}}
{{- define "flannel.metadata" -}}
{{- $global := .root.Values.global -}}
{{- with mergeOverwrite (dict) (default dict $global.commonLabels) (default dict .labels) (default dict .own) }}
labels:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with mergeOverwrite (dict) (default dict $global.commonAnnotations) (default dict .annotations) }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
